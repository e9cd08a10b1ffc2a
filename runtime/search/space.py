"""The layouts of a search: every valid one for a number of devices and a batch, within limits.

`Parallelism`, its `check` and `partition` decide validity: a layout that they accept is in the space, and their
refusals are counted.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby, islice
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.field_types import NumberSet
from kernelcast.runtime.request.fields import (
    DEGREES,
    EXPERT_DEGREES,
    LAYOUT,
    MAX_DEGREE,
    OPTIONS,
    REPLICATING,
    SEARCH,
    SEARCHED,
    SHARED,
    Recompute,
    Schedule,
)
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import (
    MAX_SIMULATED_PASSES,
    SCHEDULE_KINDS,
    USUAL_SCHEDULES,
    check_schedule,
    check_simulated,
)
from kernelcast.runtime.search.refusals import Refusals, refusal_of
from kernelcast.runtime.step.chunks import AS_SPLIT, partition
from kernelcast.runtime.step.layouts import COLUMNS, RECOMPUTE, SCHEDULES, Layouts

USUAL_VIRTUAL_STAGES = range(2, 9)
"""Chunks per device of an interleaved schedule that are searched by default."""
_BLOCK = 1 << 13
_MAX_REMEMBERED = 1 << 14
# Within a unit no layout has a number this large, so indices rise with units and inside them.
_UNIT_STEP = 1 << 28

_DP = DEGREES.index("dp")

_Table = NDArray[np.int64]

Unit = tuple[int, ...]
"""Layouts that share their degrees, ep, expert_tp, micro_batch and micro_batches, in this order."""
_OF_UNIT = (*DEGREES, *EXPERT_DEGREES, "micro_batch", "micro_batches")
_VARIED = len(SEARCHED) - len(_OF_UNIT)
"""Columns that differ inside a unit."""
_DECIDING = ("shard_group", "context_exchange", "attention_kernel")
"""Fields common to all layouts that decide which degrees are valid."""
_LEAST_PART = 4096
"""Tokens per part of a sequence: context parallelism with shorter parts is searched only on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The layouts of `model` that train `global_batch` samples per update on a number of devices in `gpus`.

    Every field from `pp` to `sequence_parallel` is a limit: the allowed values; `refused` are combinations of numbers
    that a framework does not run; `common` are the fields of
    `SHARED`, with one value each. By default layers are balanced by time (`layer_split`), `tp` stays within a node
    (`gpus_per_node`), schedules are not V-shaped, an interleaved one has 2 to 8 chunks per device, `cp` leaves a
    device 4,096 tokens of a sequence or more, `expert_tp` is 1 or tp, and other fields are free. With experts and tp
    > 1, sequences are always cut (`sequence_parallel`). Equivalent layouts are searched once: with dp = 1
    only the first of `zero`; with tp = 1 no sequence parallelism, with pp = 1 no schedule but 1f1b, and with one
    micro-batch no gpipe (it equals 1f1b then), each unless the request allows nothing else.

    Raises:
        UsageError: a field has a wrong type or value.
    """

    model: ModelConfig
    gpus: tuple[int, ...]
    global_batch: int
    gpus_per_node: int
    pp: Container[int] | None = None
    tp: Container[int] | None = None
    dp: Container[int] | None = None
    cp: Container[int] | None = None
    ep: Container[int] | None = None
    expert_tp: Container[int] | None = None
    micro_batch: Container[int] | None = None
    micro_batches: Container[int] | None = None
    virtual_stages: Container[int] = USUAL_VIRTUAL_STAGES
    schedules: tuple[Schedule, ...] = USUAL_SCHEDULES
    recompute: tuple[Recompute, ...] = RECOMPUTE
    zero: tuple[int, ...] = (0, 1, 2, 3)
    sequence_parallel: tuple[bool, ...] = (False, True)
    refused: tuple[Mapping[str, NumberSet], ...] = ()
    common: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in (OPTIONS["global_batch"], OPTIONS["gpus_per_node"]):
            row.check(getattr(self, row.name))
        listed = {
            "gpus": SEARCH["gpus"],
            "schedules": LAYOUT["schedule"],
            **{name: LAYOUT[name] for name in ("recompute", "zero", "sequence_parallel")},
        }
        for name, row in listed.items():
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise UsageError(field=name, found=values, expected="one or more different values")
            for value in values:
                row.check(value, name)
        for name, value in self.common.items():
            if value is not None or not LAYOUT[name].otherwise:
                LAYOUT[name].check(value)
        usual = {name: row.default for name, row in SHARED.items()}
        object.__setattr__(self, "common", usual | dict(self.common))

    @property
    def sample_length(self) -> int:
        """Tokens of a sample, with padding."""
        return Parallelism.unchecked(**self.common).sample_length(self.model)

    def units(self, refusals: Refusals | None = None) -> Iterator[Unit]:
        """Degrees and micro-batches, grouped by pp and micro_batches.

        A degree that no layout can have is counted in `refusals`.
        """
        refusals = Refusals() if refusals is None else refusals
        updates = [m for m in divisors(self.global_batch) if _in(m, self.micro_batches)]
        for gpus in self.gpus:
            for _, worlds in groupby(self._worlds(gpus, refusals), key=lambda degrees: degrees[0]):
                same_stages = list(worlds)
                # Many small micro-batches first: layouts that fit into memory come early, and raise the bar.
                for micro_batches in reversed(updates):
                    samples = self.global_batch // micro_batches
                    for degrees in same_stages:
                        micro_batch, rest = divmod(samples, degrees[_DP])
                        if not rest and _in(micro_batch, self.micro_batch):
                            yield *degrees, micro_batch, micro_batches

    def _worlds(self, gpus: int, refusals: Refusals) -> Iterator[tuple[int, ...]]:
        """The degrees, pp first, with ep and expert_tp, of the layouts on `gpus` devices."""
        together = (
            (*degrees, *of_experts)
            for degrees in self._products(gpus, DEGREES)
            for of_experts in self._expert_degrees(dict(zip(DEGREES, degrees, strict=True)))
        )
        for degrees in together:
            try:
                values: dict[str, Any] = dict(zip(_OF_UNIT, degrees, strict=False))
                layout = Parallelism(
                    **values,
                    micro_batch=1,
                    micro_batches=1,
                    **{name: self.common[name] for name in _DECIDING},
                    # A necessary condition of layouts with experts.
                    sequence_parallel=bool(self.model.experts) and values["tp"] > 1,
                )
                layout.check(self.model)
                partition(self.model.layers, layout.pp)
                if self.global_batch % layout.dp:
                    multiple = f"a multiple of dp ({layout.dp})"
                    raise UsageError(field="global_batch", found=self.global_batch, expected=multiple)
            except UsageError as error:
                refusals.add(error)
            else:
                yield degrees

    def _expert_degrees(self, degrees: Mapping[str, int]) -> list[tuple[int, int]]:
        """Values of ep and expert_tp within their limits that divide the devices of a stage, and the experts."""
        stage = degrees["tp"] * degrees["dp"] * degrees["cp"]
        of_experts = divisors(stage) if self.model.experts else [1]
        cut = sorted({1, degrees["tp"]}) if self.expert_tp is None and self.model.experts else of_experts
        return [
            (ep, expert_tp)
            for expert_tp in cut
            for ep in of_experts
            if _in(ep, self.ep)
            and _in(expert_tp, self.expert_tp)
            and stage % (ep * expert_tp) == 0
            and self.model.experts % ep == 0
        ]

    def _products(self, gpus: int, names: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """Values of the named degrees within their limits whose product is `gpus`."""
        if not names:
            yield from [()] if gpus == 1 else []
            return
        name, *others = names
        allowed = getattr(self, name)
        if name == "tp" and allowed is None:
            allowed = range(1, self.gpus_per_node + 1)
        if name == "cp" and allowed is None:
            allowed = range(1, max(1, self.model.sequence_length // _LEAST_PART) + 1)
        for degree in divisors(gpus) if others else [gpus]:
            if _in(degree, allowed):
                for rest in self._products(gpus // degree, others):
                    yield degree, *rest

    def blocks(
        self,
        *,
        simulated: bool = False,
        shard: int = 0,
        shards: int = 1,
        refusals: Refusals | None = None,
    ) -> Iterator[tuple[Layouts, int]]:
        """Blocks of some thousand layouts, each with how many units it completes.

        With `simulated`, what `check_simulated` refuses counts as refused. Of `shards` equal parts only number `shard`
        is gone through; a layout's index does not depend on it.
        """
        refusals = Refusals() if refusals is None else refusals
        parts = _Parts(self, simulated, refusals)
        like = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1, **self.common)
        # Every part visits these combinations; only the first counts them.
        of_degrees = refusals if shard == 0 else Refusals()
        rows: list[_Table] = []
        waiting = units = 0
        for number, unit in islice(enumerate(self.units(of_degrees)), shard, None, shards):
            table = parts.of(number, unit)
            for together in self.refused:
                held = [numbers.mask(table[:, COLUMNS.index(name)]) for name, numbers in together.items()]
                table = table[~np.logical_and.reduce(held)]
            rows.append(table)
            waiting += len(table)
            units += 1
            if waiting >= _BLOCK:
                yield Layouts(np.concatenate(rows), like), units
                rows, waiting, units = [], 0, 0
        if units:
            yield Layouts(np.concatenate(rows), like), units

    def layouts(self) -> Iterator[Parallelism]:
        """Every layout, one by one."""
        for block, _ in self.blocks():
            for row in range(len(block)):
                yield block.parallelism(row)


class _Parts:
    """Makes the rows of a unit: how its stages are cut and scheduled, times what does not touch validity."""

    def __init__(self, space: Space, simulated: bool, refusals: Refusals) -> None:
        self.space, self.simulated, self.refusals = space, simulated, refusals
        self._known: dict[tuple[int, ...], tuple[_Table, Refusals]] = {}
        self._tables: dict[tuple[object, ...], _Table] = {}
        self._chunks: dict[int, tuple[list[int], UsageError | None]] = {}

    def of(self, number: int, unit: Unit) -> _Table:
        """Rows int64 [layouts, columns] of a unit, which is number `number` of its space."""
        own, refused = self._alike(dict(zip(_OF_UNIT, unit, strict=True)))
        self.refusals.merge(refused)
        table = np.full((len(own), len(COLUMNS)), AS_SPLIT, dtype=np.int64)
        table[:, 0] = np.arange(len(own)) + number * _UNIT_STEP
        table[:, 1 : 1 + len(unit)] = unit
        table[:, 1 + len(unit) : 1 + len(unit) + _VARIED] = own
        return table

    def _alike(self, unit: dict[str, Any]) -> tuple[_Table, Refusals]:
        """Values of the other columns, int64 [layouts, columns], and refusals: the same for many units."""
        pp, micro_batches = unit["pp"], unit["micro_batches"]
        # Validity depends on these values once the degrees are valid, and on whether there is anything to shard.
        key = (
            pp,
            unit["tp"],
            unit["cp"],
            _is_alone(unit),
            micro_batches == 1,
            micro_batches % pp == 0,
            micro_batches % 2 == 0,
            micro_batches >= 2 * pp,
            # With more virtual stages a step has too many passes; no cut has more chunks than the model has layers.
            min(MAX_SIMULATED_PASSES // (micro_batches * pp), self.space.model.layers + 1),
        )
        if key not in self._known:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            self._known[key] = self._new(unit)
        return self._known[key]

    def _new(self, unit: dict[str, Any]) -> tuple[_Table, Refusals]:
        space, refusals = self.space, Refusals()
        pp, tp = unit["pp"], unit["tp"]
        # The degrees are valid; one layout for each value shows what a cut of sequences needs.
        cuts = [
            Parallelism.unchecked(**unit, sequence_parallel=sequence_parallel)
            for sequence_parallel in _distinct(space.sequence_parallel, tp > 1)
            if sequence_parallel or tp == 1 or not space.model.experts or len(space.sequence_parallel) == 1
        ]
        # The same for every schedule: a size out of range, which is told first, and what the model refuses.
        sizes = [refusal_of(_check_sizes, cut) for cut in cuts]
        of_model = [refusal_of(cut.check, space.model) for cut in cuts]
        found = list[tuple[int, ...]]()
        for schedule in _schedules(space.schedules, pp, micro_batches := unit["micro_batches"]):
            for virtual_stages in self._virtual_stages(schedule, pp, refusals):
                of_schedule = refusal_of(check_schedule, schedule, pp, micro_batches, virtual_stages)
                of_passes = self.simulated and refusal_of(check_simulated, pp * virtual_stages, micro_batches)
                for cut, first, last in zip(cuts, sizes, of_model, strict=True):
                    if error := first or of_schedule or last or of_passes:
                        refusals.add(error)
                    else:
                        row = (SCHEDULES.index(schedule), virtual_stages, int(cut.sequence_parallel))
                        found.append(row)
        variants = tuple(found)
        is_alone = _is_alone(unit)
        if (variants, is_alone) not in self._tables:
            options = [
                (RECOMPUTE.index(recompute), zero)
                for recompute in space.recompute
                for zero in (space.zero[:1] if is_alone else space.zero)
            ]
            rows = [(*variant, *option) for variant in variants for option in options]
            self._tables[variants, is_alone] = np.array(rows, dtype=np.int64).reshape(-1, _VARIED)
        return self._tables[variants, is_alone], refusals

    def _virtual_stages(self, schedule: Schedule, pp: int, refusals: Refusals) -> list[int]:
        usual = SCHEDULE_KINDS[schedule].virtual_stages
        if usual == 1:
            return [1]
        if usual:
            try:
                partition(self.space.model.layers, pp, usual)
            except UsageError as error:
                refusals.add(error)
                return []
            return [usual]
        if pp not in self._chunks:
            self._chunks[pp] = self._chunks_per_stage(pp)
        allowed, refusal = self._chunks[pp]
        if refusal is not None:
            refusals.add(refusal)
        return allowed

    def _chunks_per_stage(self, pp: int) -> tuple[list[int], UsageError | None]:
        """Allowed numbers of chunks, and the refusal of the next one if the limits allow it."""
        allowed: list[int] = []
        # `partition` refuses every cut that is finer than one that it refuses.
        for virtual_stages in range(1, MAX_DEGREE):
            try:
                partition(self.space.model.layers, pp, virtual_stages)
            except UsageError as error:
                return allowed, error if virtual_stages in self.space.virtual_stages else None
            if virtual_stages in self.space.virtual_stages:
                allowed.append(virtual_stages)
        return allowed, None


def _check_sizes(cut: Parallelism) -> None:
    for name in ("micro_batch", "micro_batches"):
        LAYOUT[name].check(getattr(cut, name))


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def _is_alone(unit: Mapping[str, int]) -> bool:
    """Whether no device holds the same parameters as another."""
    return all(unit[name] == 1 for name in REPLICATING)


def _in(number: int, allowed: Container[int] | None) -> bool:
    return allowed is None or number in allowed


def _schedules(asked: tuple[Schedule, ...], pp: int, micro_batches: int) -> tuple[Schedule, ...]:
    if pp == 1 and "1f1b" in asked:
        return ("1f1b",)
    if micro_batches == 1 and "1f1b" in asked:
        return tuple(schedule for schedule in asked if schedule != "gpipe")
    return asked


def _distinct(sequence_parallel: tuple[bool, ...], makes_a_difference: bool) -> tuple[bool, ...]:
    # Without tensor parallelism no sequence is cut: both values give the same calls.
    if makes_a_difference or len(sequence_parallel) == 1:
        return sequence_parallel
    return (False,)
