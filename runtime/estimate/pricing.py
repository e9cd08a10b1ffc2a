"""The times of the pieces of layouts: every regressor is asked once for all that is new, and prices are remembered."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import Question, question
from kernelcast.runtime.estimate.configurations import Times
from kernelcast.runtime.estimate.layouts import Layouts
from kernelcast.runtime.estimate.pieces import Kind, PieceKey, Prices
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.calls import Calls
from kernelcast.runtime.step.decomposition import Decomposition

# Prices remembered from block to block; a piece is some hundred bytes.
_MAX_REMEMBERED = 1 << 15

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
        found = [self._keys(layouts, kinds, wanted) for layouts, kinds in requests]
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
        self, layouts: Layouts, kinds: Sequence[Kind], wanted: dict[PieceKey, Sequence[Calls]]
    ) -> dict[str, tuple[list[PieceKey], NDArray[np.intp]]]:
        """Keys of the distinct pieces of every kind, and which is whose; unknown ones go into `wanted`."""
        by_columns: dict[tuple[str, ...], list[Kind]] = {}
        for kind in kinds:
            by_columns.setdefault(kind.columns, []).append(kind)
        found = {}
        for columns, alike in by_columns.items():
            distinct, whose = layouts.distinct(*columns)
            values = list(zip(*(distinct[column].tolist() for column in columns), strict=True))
            taken_apart: dict[int, Decomposition] = {}
            for kind in alike:
                keys: list[PieceKey] = [(kind.name, *row) for row in values]
                for row, key in enumerate(keys):
                    if key not in self._known and key not in wanted:
                        if row not in taken_apart:
                            taken_apart[row] = self.take_apart(distinct, row)
                        wanted[key] = kind.parts(taken_apart[row])
                found[kind.name] = keys, whose
        return found

    def _ask(self, wanted: dict[PieceKey, Sequence[Calls]], launch_us: float) -> dict[PieceKey, Times]:
        """Times of the wanted pieces, float64 [parts, 2, 1 + draws] each; every regressor is asked at most once.

        A part takes at least `launch_us` for each of its kernels that compute.
        """
        asked: dict[Question, int] = {}
        of_part: list[int] = []
        of_question: list[int] = []
        counts: list[int] = []
        of_weights: list[bool] = []
        # Pieces share parts, such as forward passes with and without recomputation.
        every = [calls for piece in wanted.values() for calls in piece]
        parts = list({id(calls): calls for calls in every}.values())
        for part, calls in enumerate(parts):
            for call in calls:
                of_part.append(part)
                of_question.append(asked.setdefault(question(call), len(asked)))
                counts.append(call.count)
                of_weights.append(call.direction is Direction.WEIGHT_GRADIENT)
        terms_us = np.array(counts, dtype=np.float64)[:, None] * self.times_of(list(asked))[of_question]
        totals = np.zeros((len(parts), 2, 1 + self.draws))
        whose, weights = np.array(of_part, dtype=np.intp), np.array(of_weights, dtype=bool)
        np.add.at(totals[:, 0], whose, terms_us)
        np.add.at(totals[:, 1], whose[weights], terms_us[weights])
        if launch_us:
            kernels = [
                sum(call.count for call in calls if not OPERATORS[call.operator].is_collective)
                for calls in parts
            ]
            totals[:, 0] = np.maximum(totals[:, 0], launch_us * np.array(kernels)[:, None])
        position = {id(calls): part for part, calls in enumerate(parts)}
        ends = np.cumsum([len(piece) for piece in wanted.values()])
        of_pieces = np.split(totals[[position[id(calls)] for calls in every]], ends[:-1])
        return dict(zip(wanted, of_pieces, strict=True))
