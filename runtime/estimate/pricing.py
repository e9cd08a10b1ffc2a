"""The times of the pieces of layouts: every regressor is asked once for all new pieces, and prices are cached."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.estimate.configurations import Rows, Times
from kernelcast.runtime.estimate.layout_pieces import Kind, Part, Parts, PricedKind, Prices
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.decomposition import Decomposition
from kernelcast.runtime.step.layouts import Layouts
from kernelcast.runtime.step.op import OTHER_MICRO_BATCH, Call, Calls

# Prices cached from block to block; a piece is some hundred bytes.
_MAX_REMEMBERED = 1 << 15

PieceKey = tuple[object, ...]
"""Kind of piece, and the values of the columns that it depends on."""

DROPLESS_OPERATOR_US = 200.0
"""Host time of an operator of a framework's module with its checks, casts and launches; as long is a step of small
layers that nothing hides, with experts (200 to 213 on H100 and B200) or adapters (193), over its operators."""

_ASKED, _COUNT = attrgetter("operator", "direction", "shape", "role"), attrgetter("count")
"""What a call asks, and how often."""

TimesOf = Callable[[Sequence[Question]], Times]
"""Times of questions in µs, float64 [questions, 1 + draws]; NaN where there is no answer."""

_Piece = tuple[tuple[Part, ...], Times]
"""The parts of a piece, and their times, float64 [parts, 2, 1 + draws]."""


class Pricing:
    """Prices pieces by `times_of`; `take_apart` makes the decomposition of a layout of a block."""

    def __init__(
        self,
        times_of: TimesOf,
        take_apart: Callable[[Layouts, int], Decomposition],
        *,
        draws: int,
        has_host: bool = False,
    ) -> None:
        self.times_of, self.take_apart, self.draws, self.has_host = times_of, take_apart, draws, has_host
        self._known: dict[PieceKey, _Piece] = {}

    def price(self, requests: Sequence[tuple[Layouts, Sequence[Kind]]]) -> list[Prices]:
        """Prices of the kinds of pieces of every block; all blocks agree in the common fields of their layouts."""
        wanted: dict[PieceKey, Parts] = {}
        taken_apart: dict[tuple[object, ...], Decomposition] = {}
        found = [self._keys(layouts, kinds, wanted, taken_apart) for layouts, kinds in requests]
        if wanted:
            if len(self._known) + len(wanted) > _MAX_REMEMBERED:
                needed = {key for one in found for keys, _ in one.values() for key in keys} - wanted.keys()
                self._known = {key: self._known[key] for key in needed}
            self._known.update(self._ask(wanted, requests[0][0].like))
        return [
            Prices({name: self._priced(keys, whose) for name, (keys, whose) in one.items()}) for one in found
        ]

    def _priced(self, keys: Sequence[PieceKey], whose: Rows) -> PricedKind:
        """The prices of some pieces as one array; a part that a piece lacks takes no time."""
        pieces = [self._known[key] for key in keys]
        places = {
            part: place for place, part in enumerate(dict.fromkeys(chain(*(parts for parts, _ in pieces))))
        }
        alike: dict[tuple[Part, ...], list[int]] = {}
        for row, (parts, _) in enumerate(pieces):
            alike.setdefault(parts, []).append(row)
        times_us = np.zeros((len(pieces), len(places), 2, 1 + self.draws))
        for parts, rows in alike.items():
            own = np.stack([pieces[row][1] for row in rows])
            times_us[np.ix_(rows, [places[part] for part in parts])] = own
        return PricedKind(times_us, places, whose)

    def _keys(
        self,
        layouts: Layouts,
        kinds: Sequence[Kind],
        wanted: dict[PieceKey, Parts],
        taken_apart: dict[tuple[object, ...], Decomposition],
    ) -> dict[str, tuple[list[PieceKey], Rows]]:
        """Keys of the distinct pieces of every kind, and the piece of each layout; unknown ones go into `wanted`.

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

    def _ask(self, wanted: Mapping[PieceKey, Parts], layout: Parallelism) -> dict[PieceKey, _Piece]:
        """Times of the wanted pieces; every regressor is asked at most once.

        A part takes at least as long as the host (docs/method.md, The host), unless graphs of whole passes replace it.
        """
        # Pieces share parts, such as forward passes with and without recomputation.
        parts = list({id(calls): calls for piece in wanted.values() for calls in piece.values()}.values())
        totals = self._totals(parts)
        if layout.cuda_graphs != "full":
            ahead = {
                id(calls)
                for piece in wanted.values()
                for part, calls in piece.items()
                if part.is_compute and part.overlap in (None, OTHER_MICRO_BATCH)
            }
            host_us = [0.0 if id(one) in ahead else self._host_us(one, layout) for one in parts]
            waits_us = [0.0 if id(one) in ahead else self._waits_us(one, layout) for one in parts]
            totals[:, 0] = np.maximum(totals[:, 0] + np.array(waits_us)[:, None], np.array(host_us)[:, None])
        place = {id(calls): index for index, calls in enumerate(parts)}
        return {
            key: (tuple(piece), totals[[place[id(calls)] for calls in piece.values()]])
            for key, piece in wanted.items()
        }

    def _host_us(self, calls: Calls, layout: Parallelism) -> float:
        """What the host takes for a sequence of calls in µs, where it does not run ahead.

        It cannot with experts that drop no token: it waits for their numbers of rows in every layer.
        """
        # Casts, and dropouts before adapters, belong to the modules of their products.
        of_modules = (
            ("float8_cast", "dropout") if layout.lora_dropout and not layout.dropout else ("float8_cast",)
        )
        computing = [
            one
            for one in calls
            if not OPERATORS[one.operator].is_collective and one.operator not in of_modules
        ]
        # Graphs of modules take the launches of all but dropless experts.
        launch_us = layout.host_launch_us if layout.cuda_graphs == "none" else 0.0
        launches_us = launch_us * sum(one.count * _launches(one) for one in computing)
        if not self.has_host or layout.expert_padding or not any(map(_is_grouped, computing)):
            return launches_us
        return max(launches_us, DROPLESS_OPERATOR_US * len(computing))

    def _waits_us(self, calls: Calls, layout: Parallelism) -> float:
        """What a device waits in µs for the first operator after the host read the experts' numbers of rows."""
        if not self.has_host or layout.expert_padding or not any(map(_is_grouped, calls)):
            return 0.0
        return DROPLESS_OPERATOR_US * sum(one.count for one in calls if one.operator == "permute" and one.direction is Direction.FORWARD)

    def _totals(self, parts: Sequence[Calls]) -> Times:
        """Times of sequences of calls, and of the weight gradients among them, float64 [parts, 2, 1 + draws]."""
        calls: list[Call] = list(chain.from_iterable(parts))
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
        return totals


def _launches(call: Call) -> int:
    """Kernels that the host launches for one call: several for an eager operator."""
    is_eager = call.operator.startswith("eager_")
    return OPERATORS[call.operator].kernels[call.direction] if is_eager else 1


def _is_grouped(call: Call) -> bool:
    return call.operator.startswith("grouped_gemm")
