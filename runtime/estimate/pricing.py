"""The times of the pieces of layouts: every regressor is asked once for all that is new, and prices are remembered."""

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.estimate.configurations import Times
from kernelcast.runtime.estimate.layouts import Layouts
from kernelcast.runtime.estimate.pieces import Kind, PieceKey, Prices
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.calls import Calls
from kernelcast.runtime.step.decomposition import Decomposition

# Prices remembered from block to block; a piece is some hundred bytes.
_MAX_REMEMBERED = 1 << 15

_ASKED, _COUNT = attrgetter("operator", "direction", "shape", "role"), attrgetter("count")
"""What a call asks, and how often."""

TimesOf = Callable[[Sequence[Question]], Times]
"""Times of questions in µs, float64 [questions, 1 + draws]; NaN where there is no answer."""


class Pricing:
    """Prices pieces by `times_of`; `take_apart` makes the decomposition of a layout of a block."""

    def __init__(
        self, times_of: TimesOf, take_apart: Callable[[Layouts, int], Decomposition], *, draws: int
    ) -> None:
        self.times_of, self.take_apart, self.draws = times_of, take_apart, draws
        self._known: dict[PieceKey, Times] = {}

    def price(self, requests: Sequence[tuple[Layouts, Sequence[Kind]]]) -> list[Prices]:
        """Prices of the kinds of pieces of every block of layouts; all blocks share what layouts have in common."""
        wanted: dict[PieceKey, Sequence[Calls]] = {}
        taken_apart: dict[tuple[object, ...], Decomposition] = {}
        found = [self._keys(layouts, kinds, wanted, taken_apart) for layouts, kinds in requests]
        if wanted:
            if len(self._known) + len(wanted) > _MAX_REMEMBERED:
                needed = {key for one in found for keys, _ in one.values() for key in keys} - wanted.keys()
                self._known = {key: self._known[key] for key in needed}
            launch_us = requests[0][0].of_stack("host_launch_us")
            self._known.update(self._ask(wanted, launch_us))
        return [
            Prices(
                {name: np.stack([self._known[key] for key in keys]) for name, (keys, _) in one.items()},
                {name: whose for name, (_, whose) in one.items()},
            )
            for one in found
        ]

    def _keys(
        self,
        layouts: Layouts,
        kinds: Sequence[Kind],
        wanted: dict[PieceKey, Sequence[Calls]],
        taken_apart: dict[tuple[object, ...], Decomposition],
    ) -> dict[str, tuple[list[PieceKey], NDArray[np.intp]]]:
        """Keys of the distinct pieces of every kind, and which is whose; unknown ones go into `wanted`.

        Layouts that agree in the columns of a kind are taken apart once.
        """
        by_columns: dict[tuple[str, ...], list[Kind]] = {}
        for kind in kinds:
            by_columns.setdefault(kind.columns, []).append(kind)
        found = {}
        for columns, alike in by_columns.items():
            distinct, whose = layouts.distinct(*columns)
            values = list(zip(*(distinct[column].tolist() for column in columns), strict=True))
            for kind in alike:
                keys: list[PieceKey] = [(kind.name, *own) for own in values]
                for row, key in enumerate(keys):
                    if key not in self._known and key not in wanted:
                        agreeing = (columns, values[row])
                        if agreeing not in taken_apart:
                            taken_apart[agreeing] = self.take_apart(distinct, row)
                        wanted[key] = kind.parts(taken_apart[agreeing])
                found[kind.name] = keys, whose
        return found

    def _ask(self, wanted: dict[PieceKey, Sequence[Calls]], launch_us: float) -> dict[PieceKey, Times]:
        """Times of the wanted pieces, float64 [parts, 2, 1 + draws] each; every regressor is asked at most once.

        A part takes at least `launch_us` for each of its kernels that compute.
        """
        # Pieces share parts, such as forward passes with and without recomputation.
        every = [part for piece in wanted.values() for part in piece]
        parts = list({id(part): part for part in every}.values())
        calls = list(chain.from_iterable(parts))
        asked = list(map(_ASKED, calls))
        position = {one: index for index, one in enumerate(dict.fromkeys(asked))}
        questions = [((operator, direction), shape, role) for operator, direction, shape, role in position]
        of_weights = np.array([key[1] is Direction.WEIGHT_GRADIENT for key, _, _ in questions], dtype=bool)
        whose = np.repeat(np.arange(len(parts)), list(map(len, parts)))
        which = np.fromiter(map(position.__getitem__, asked), dtype=np.intp, count=len(asked))
        counts = np.fromiter(map(_COUNT, calls), dtype=np.float64, count=len(calls))
        terms_us = counts[:, None] * self.times_of(questions)[which]
        totals = np.zeros((len(parts), 2, 1 + self.draws))
        np.add.at(totals[:, 0], whose, terms_us)
        weights = of_weights[which]
        np.add.at(totals[:, 1], whose[weights], terms_us[weights])
        if launch_us:
            kernels = [
                sum(call.count for call in part if not OPERATORS[call.operator].is_collective)
                for part in parts
            ]
            totals[:, 0] = np.maximum(totals[:, 0], launch_us * np.array(kernels)[:, None])
        part_of = {id(part): index for index, part in enumerate(parts)}
        ends = np.cumsum([len(piece) for piece in wanted.values()])
        of_pieces = np.split(totals[[part_of[id(part)] for part in every]], ends[:-1])
        return dict(zip(wanted, of_pieces, strict=True))
