"""Measured and predicted work of a step side by side: parts, operators, collectives, and kernels of no operator."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from kernelcast.collector.ingest.collectives import kind_of
from kernelcast.runtime import Estimate
from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.runtime.step.op import ONCE_PER_UPDATE, Component
from kernelcast.validate.compare.traced_steps import TracedSteps, Work

PARTS = ("forward", "backward", "update", "other", "communication", "copies", "host", "waiting")
"""The parts of a step, in the order of their display; `other`: the host's side was not recorded."""
_ELEMENT_BYTES = {"float32": 4, "float64": 8}
_UPDATE = "update"
_NEAR = 1.5  # how far apart two workloads of one operator may be to be the same call
_SAME_ROWS = 1.1
FUSED_ATTENTION = ("flash_attention", "attention_block")
PRODUCTS = tuple(
    name
    for name, operator in OPERATORS.items()
    if operator.operator_class is OperatorClass.COMPUTE and name not in FUSED_ATTENTION
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operator in one pass, or one collective: seconds in a step, measured and predicted (None: it has none).

    `name` is operator and roles; of a host's operator that the table lacks its own name. Bytes count a step's
    messages. `by_rank_s` are the measured seconds of every rank.
    """

    name: str
    operator: str
    pass_: str  # forward, backward, update, once (collectives), or empty
    roles: tuple[str, ...] = ()
    vector: tuple[int, ...] = ()
    measured_s: float | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    launches: float = 0.0
    calls: int = 0
    measured_bytes: float = 0.0
    predicted_bytes: float = 0.0
    variants: tuple[str, ...] = ()
    by_rank_s: Mapping[int, float] | None = None

    def message_bytes(self, element_bytes: int) -> int:
        """Bytes of one call as nccl-tests count them: of an all-gather, the gathered whole."""
        elements, *layout = self.vector
        return elements * element_bytes * (prod(layout) if OPERATORS[self.operator].is_sharded else 1)

    @property
    def excess_s(self) -> float:
        return (self.measured_s or 0.0) - (self.predicted_s or 0.0)

    @property
    def ratio(self) -> float | None:
        """Measured / predicted; None where one of them is missing."""
        return self.measured_s / self.predicted_s if self.measured_s and self.predicted_s else None

    @property
    def is_slow(self) -> bool:
        """Whether it took longer than its interval allows."""
        return self.measured_s is not None and self.high_s is not None and self.measured_s > self.high_s

    @property
    def is_matched(self) -> bool:
        return self.measured_s is not None and self.predicted_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """What the stages of the traced ranks do in a step; `parts_s` are means over those stages.

    `calls` has a row for each operator, workload and pass, summed over the stages.
    """

    calls: tuple[Row, ...]
    parts_s: Mapping[str, float]


def stage_of(rank: int, estimate: Estimate) -> int:
    """The pipeline stage of a rank: stages are the outermost dimension, as in Megatron-LM and torchtitan."""
    layout = estimate.parallelism
    return min(rank * layout.pp // layout.world_size, layout.pp - 1)


def predicted_step(estimate: Estimate, ranks: Collection[int]) -> PredictedStep:
    """The calls of the stages that `ranks` are on, and seconds by part: passes, update, communication, waiting.

    What a stage neither computes nor communicates is waiting for other stages; of communication no more counts than
    the step has left after computing, where the prediction overlaps it.
    """
    stages = sorted({stage_of(rank, estimate) for rank in ranks})
    sums: dict[tuple[str, str, tuple[int, ...]], list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    roles: dict[tuple[str, str, tuple[int, ...]], dict[str, None]] = defaultdict(dict)
    by_pass: dict[int, dict[str, float]] = {stage: defaultdict(float) for stage in stages}
    for row in estimate.operators:
        if row.stage not in by_pass:
            continue
        repeats = estimate.repeats(row.component)
        key = row.operator, _pass_of(row.component, row.operator), row.vector
        calls = repeats * row.count
        # Both gradients of a linear are one call of its backward pass.
        counted = 0 if row.direction.value == "weight_gradient" else calls
        for place, value in enumerate(
            (counted, *(calls * us / 1e6 for us in (row.time_us, row.low_us, row.high_us)))
        ):
            sums[key][place] += value
        roles[key][row.role] = None
        by_pass[row.stage][key[1]] += repeats * row.total_s
    parts = [_parts(one, estimate.step_time_s) for one in by_pass.values()]
    return PredictedStep(
        calls=tuple(
            Row(
                name=" ".join(filter(None, (operator, *roles[operator, pass_, vector]))),
                operator=operator,
                pass_=pass_,
                roles=tuple(roles[operator, pass_, vector]),
                vector=vector,
                predicted_s=time_s,
                low_s=low_s,
                high_s=high_s,
                calls=round(count),
            )
            for (operator, pass_, vector), (count, time_s, low_s, high_s) in sums.items()
        ),
        parts_s={name: sum(one[name] for one in parts) / len(parts) for name in parts[0]},
    )


def _pass_of(component: Component, operator: str) -> str:
    if OPERATORS[operator].is_collective:
        return "once"
    if component in ONCE_PER_UPDATE:
        return "update"
    return "backward" if "backward" in component.value else "forward"


def _parts(by_pass: Mapping[str, float], step_s: float) -> dict[str, float]:
    passes = {name: by_pass.get(name, 0.0) for name in ("forward", "backward", "update")}
    left_s = max(step_s - sum(passes.values()), 0.0)
    communication_s = min(by_pass.get("once", 0.0), left_s)
    return {**passes, "communication": communication_s, "waiting": left_s - communication_s}


def part_rows(traced: TracedSteps, predicted: PredictedStep) -> tuple[Row, ...]:
    """The parts of the typical step, means over the ranks; those that neither side has are left out."""
    step, ranks = traced.typical, traced.ranks
    measured: dict[str, float] = defaultdict(float)
    for rank in ranks:
        parts = traced.parts_s[rank][step]
        measured["communication"] += parts["exposed_communication"]
        measured["copies"] += parts["memory"]
        measured["host"] += parts["idle_host"]
        measured["waiting"] += sum(
            value for name, value in parts.items() if name.startswith("idle_") and name != "idle_host"
        )
    for work in _typical(traced):
        if work.class_ == "compute":
            measured[work.pass_ or "other"] += work.time_s
    rows = (
        Row(
            name=part,
            operator="",
            pass_="",
            measured_s=measured[part] / len(ranks),
            predicted_s=predicted.parts_s.get(part, 0.0),
        )
        for part in PARTS
    )
    return tuple(row for row in rows if row.measured_s or row.predicted_s)


def operator_rows(traced: TracedSteps, predicted: PredictedStep, estimate: Estimate) -> tuple[Row, ...]:
    """Every operator of the prediction and of the trace, and compute of none, by how much longer it took.

    A measured call is the predicted one of the same operator, pass and workload; else of the same role; else, but of
    products, of the nearest workload within 1.5 times.
    """
    once = [row for row in predicted.calls if row.pass_ == _UPDATE]
    of = {row: list[Work]() for row in predicted.calls if row.pass_ not in (_UPDATE, "once")}
    others: dict[Row, list[Work]] = defaultdict(list)
    update: list[Work] = []
    for work in _typical(traced):
        if work.class_ == "communication":
            continue
        # Frameworks fuse clipping, the optimizer and setting to zero in their own ways.
        if work.pass_ == _UPDATE:
            update.append(work)
        elif (found := _matching(work, of)) is not None:
            of[found].append(work)
        else:
            called = " ".join(filter(None, (work.operator or work.host_operator, work.role))) or work.class_
            others[Row(name=called, operator=work.operator, pass_=work.pass_)].append(work)
    if once or update:
        name = " + ".join(dict.fromkeys(row.operator for row in once)) or _UPDATE
        others[Row(name=name, operator="", pass_=_UPDATE, **_sums(once))] = update
    return _measured(traced, estimate, {**of, **others})


def collective_rows(traced: TracedSteps, predicted: PredictedStep, estimate: Estimate) -> tuple[Row, ...]:
    """Every kind of collective: exposed seconds and bytes of a step, by how much longer it took."""
    measured: dict[str, list[Work]] = defaultdict(list)
    for work in _typical(traced):
        # On a CPU the call that starts a collective has time of its own, but describes nothing.
        if work.class_ == "communication" and (work.collective or work.time_s):
            measured[kind_of(work.collective) or work.collective or "not described"].append(work)
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in predicted.calls:
        if row.pass_ == "once":
            wanted[row.operator].append(row)
    width = _ELEMENT_BYTES.get(estimate.provenance.dtype, 2)
    total_s = sum(row.predicted_s or 0.0 for of_kind in wanted.values() for row in of_kind)
    # What the prediction overlaps is left out of every kind.
    exposed = predicted.parts_s["communication"] / total_s if total_s else 1.0
    found = {}
    for kind in dict.fromkeys([*measured, *wanted]):
        calls = wanted.get(kind, [])
        size = float(sum(one.calls * one.message_bytes(width) for one in calls))
        row = Row(name=kind, operator=kind, pass_="once", predicted_bytes=size, **_sums(calls, exposed))
        found[row] = measured.get(kind, [])
    return _measured(traced, estimate, found)


def _sums(rows: Sequence[Row], exposed: float = 1.0) -> dict[str, Any]:
    """Predicted calls, seconds and their interval, whose upper end assumes no overlap."""
    if not rows:
        return {}
    return {
        "calls": sum(one.calls for one in rows),
        "predicted_s": exposed * sum(one.predicted_s or 0.0 for one in rows),
        "low_s": exposed * sum(one.low_s or 0.0 for one in rows),
        "high_s": sum(one.high_s or 0.0 for one in rows),
    }


def _typical(traced: TracedSteps) -> Sequence[Work]:
    step = traced.typical
    return [work for work in traced.work if work.step == step]


def _matching(work: Work, wanted: Collection[Row]) -> Row | None:
    same = [calls for calls in wanted if calls.operator == work.operator and calls.pass_ == work.pass_]
    exact = next((calls for calls in same if calls.vector == work.vector), None)
    of_role = next(
        (calls for calls in same if work.role and work.role in calls.roles and _is_alike(work, calls)), None
    )
    if exact and of_role and work.role not in exact.roles:
        return of_role  # queries apart from keys are as wide as the attention's output
    if exact or of_role or not work.vector:
        return exact or of_role
    if work.operator in PRODUCTS:
        # Experts one after the other, each with its own tokens.
        experts = (one for one in wanted if (one.operator, one.pass_) == ("grouped_gemm", work.pass_))
        return next((one for one in experts if one.vector[2:] == work.vector[-2:]), None)
    if not same:
        return None
    elements = OPERATORS[work.operator].elements
    distance = {
        id(calls): abs(math.log(max(elements(calls.vector), 1) / max(elements(work.vector), 1)))
        for calls in same
    }
    nearest = min(same, key=lambda calls: distance[id(calls)])
    if any(one.operator == "grouped_gemm" for one in wanted) and elements(work.vector) < elements(
        nearest.vector
    ):
        return nearest  # of one expert, whose part the prediction does not have
    return nearest if distance[id(nearest)] <= math.log(_NEAR) else None


def _is_alike(work: Work, calls: Row) -> bool:
    """Whether a product has the tokens of a predicted one, and a width: a part has at least one of them."""
    if work.operator != "gemm" or not work.vector:
        return True
    is_as_wide = any(one == other for one, other in zip(work.vector[1:], calls.vector[1:], strict=True))
    return is_as_wide and is_near_rows(work.vector[0], calls.vector[0])


def is_near_rows(one: int, other: int) -> bool:
    """Whether products have about the same tokens: the loss may leave out the last token of a sequence."""
    return max(one, other) <= _SAME_ROWS * min(one, other)


def _measured(
    traced: TracedSteps, estimate: Estimate, found: Mapping[Row, Sequence[Work]]
) -> tuple[Row, ...]:
    """Predicted rows with what was measured of them, by how much longer it took.

    Seconds are summed over the stages, of a stage's ranks the mean, as in the prediction.
    """
    ranks_of = Counter(stage_of(rank, estimate) for rank in traced.ranks)
    rows = []
    for row, work in found.items():
        by_rank: dict[int, float] = dict.fromkeys(traced.ranks, 0.0)
        time_s = launches = size = 0.0
        for one in work:
            share = 1 / ranks_of[stage_of(one.rank, estimate)]
            by_rank[one.rank] += one.time_s
            time_s += share * one.time_s
            launches += share * one.launches
            size += share * one.launches * (one.message_bytes or 0)
        rows.append(
            replace(
                row,
                measured_s=time_s if work else None,
                launches=launches,
                measured_bytes=size,
                variants=tuple(sorted({one.variant for one in work if one.variant})),
                by_rank_s=by_rank if work else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.excess_s))
