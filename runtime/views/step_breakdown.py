"""Where the time of a step goes: by part, which add up to the step (docs/timeline.md), and by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.pipeline.durations import Times
from kernelcast.runtime.pipeline.schedules import Kind, Pass, saved_in_pairs_us, units
from kernelcast.runtime.pipeline.simulate import simulate
from kernelcast.runtime.request.schedule import chunks_on
from kernelcast.runtime.step.op import Component

if TYPE_CHECKING:
    from kernelcast.runtime.pipeline.pass_times import StageTimeline, StepTimeline

_PASS_PARTS = {  # name, colour's class
    Component.LAYER_FORWARD: ("layers forward", "forward"),
    Component.LAYER_BACKWARD: ("layers backward", "backward"),
    Component.ENDS_FORWARD: ("embedding, logits and loss forward", "ends-forward"),
    Component.ENDS_BACKWARD: ("embedding, logits and loss backward", "ends-backward"),
}
_STYLES = {"expert": "expert", "expert_tensor": "expert", "context": "context"}
NAMES = {
    "expert": "expert all-to-all",
    "context": "context-parallel exchange",
    "tensor": "tensor-parallel collectives",
}
"""Names of collectives inside passes by style, in the order of the pages."""
_US = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a step: its name, its class in the style sheet, and its time on the average stage."""

    name: str
    style: str
    time_s: float


def style_of(role: str) -> str:
    """Style of a role's collectives; tensor parallelism's by default."""
    return _STYLES.get(role, "tensor")


def step_shares(estimate: Estimate, timeline: StepTimeline | None) -> tuple[Share, ...]:
    """Parts of the simulated step, averaged over stages; they sum to the step. Only waits count of transfers, without
    `timeline` as part of the wait for other stages.
    """
    pp, micro_batches = estimate.parallelism.pp, estimate.parallelism.micro_batches
    parts = dict.fromkeys(_PASS_PARTS, 0.0)
    collectives = dict.fromkeys(NAMES, 0.0)
    for row in estimate.operators:
        if row.component in parts:
            time_s = micro_batches * row.total_s / pp
            # The other collectives are components of their own.
            if OPERATORS[row.operator].is_collective:
                collectives[style_of(row.role)] += time_s
            else:
                parts[row.component] += time_s
    passes_s = _busy_us(estimate).sum() * _US / pp
    # The exposed part of overlapped collectives makes passes longer.
    exposed_s = max(0.0, passes_s - sum(parts.values()) - sum(collectives.values()))
    update_ops: dict[str, float] = {}
    for stage in estimate.stages:
        for name, time_s in stage.update_ops_s.items():
            update_ops[name] = update_ops.get(name, 0.0) + time_s
    waits_us = _waits_of_passes(timeline) if timeline else _waits_in_total(estimate)
    transfers_s, stages_s, reduce_s = (one * _US for one in waits_us)
    gather_s = sum(stage.all_gather_s for stage in estimate.stages) / pp
    copies = " and copies to the host" if estimate.parallelism.offload_activations else ""
    shares = [
        *((name, style, parts[part]) for part, (name, style) in _PASS_PARTS.items()),
        *((name, style, collectives[style]) for style, name in NAMES.items()),
        (f"overlapped collectives{copies}, exposed part", "sharded", exposed_s),
        ("waiting for transfers between stages", "transfer", transfers_s),
        ("waiting for other stages (bubble)", "bubble", stages_s),
        ("exposed data-parallel all-reduce", "reduce", reduce_s),
        *((name.replace("_", " "), "optimizer", time_s / pp) for name, time_s in update_ops.items()),
        ("all-gather of parameters", "gather", gather_s),
    ]
    smallest_s = 1e-9 * sum(time_s for *_, time_s in shares)
    return tuple(
        Share(name=name, style=style, time_s=time_s) for name, style, time_s in shares if time_s > smallest_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTotal:
    """Calls of one operator in one role and direction on one device of every stage, and their time in a step."""

    operator: str
    role: str
    direction: str
    calls: int
    time_s: float


def operator_rows(estimate: Estimate) -> list[dict[str, Any]]:
    """`operator_totals` as a table for `cell_text`: values by column."""
    totals = operator_totals(estimate)
    whole_s = sum(total.time_s for total in totals)
    return [
        {
            **values_of(total, "operator", "role", "direction", "calls"),
            "mean_time_s": total.time_s / total.calls,
            "device_time_s": total.time_s,
            "share_percent": 100 * total.time_s / whole_s,
        }
        for total in totals
    ]


def operator_totals(estimate: Estimate) -> list[OperatorTotal]:
    """The longest first. Rows per micro-batch count once for every micro-batch of the update."""
    totals: dict[tuple[str, str, str], tuple[int, float]] = {}
    for row in estimate.operators:
        repeats = estimate.repeats(row.component)
        key = row.operator, row.role, row.direction.value
        calls, time_s = totals.get(key, (0, 0.0))
        totals[key] = calls + repeats * row.count, time_s + repeats * row.total_s
    rows = [
        OperatorTotal(operator=operator, role=role, direction=direction, calls=calls, time_s=time_s)
        for (operator, role, direction), (calls, time_s) in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_s, row.operator, row.role, row.direction))


def _busy_us(estimate: Estimate) -> Times:
    """Time of the passes of every stage in a step, float64 [stages] in µs."""
    durations, overlap = estimate.durations, estimate.durations.overlap
    layout = estimate.parallelism
    passes_us = durations.forward_us + durations.backward_us + durations.weight_us
    longer_us = np.zeros_like(passes_us) if overlap is None else overlap.first_us + overlap.last_us
    # With two copies of the model each runs every other micro-batch.
    all_us = layout.micro_batches / layout.copies * passes_us + longer_us
    found: Times = np.zeros(layout.pp)
    shape = layout.schedule, layout.pp, layout.virtual_stages
    for stage, chunks in enumerate(chunks_on(*shape)):
        found[stage] = all_us[0, list(chunks)].sum()
    saved_us = saved_in_pairs_us(durations, layout.schedule, layout.micro_batches, layout.virtual_stages)
    found -= saved_us[0]
    return found


def _waits_of_passes(timeline: StepTimeline) -> tuple[float, float, float]:
    """Waits in µs for transfers, for other stages and for gradients; means over the stages."""
    transfers_us = stages_us = reduce_us = 0.0
    for stage in timeline.stages:
        sent_us, waited_us = _gaps(stage, timeline)
        transfers_us += sent_us
        stages_us += waited_us + timeline.step_us - stage.update.end_us
        reduce_us += stage.update.start_us - stage.ends_us[-1]
    pp = len(timeline.stages)
    return transfers_us / pp, stages_us / pp, reduce_us / pp


def _gaps(stage: StageTimeline, timeline: StepTimeline) -> tuple[float, float]:
    """Waits of a stage between its passes in µs: for the transfers of inputs, and before for the inputs themselves.

    A waiting stage starts when its input arrives, so a wait ends with the transfer.
    """
    transfers_us = stages_us = free_us = 0.0
    times = zip(stage.passes, stage.starts_us, stage.ends_us, strict=True)
    for unit in units(stage.passes):
        together = [next(times) for _ in unit]
        gap_us, free_us = together[0][1] - free_us, together[-1][2]
        if gap_us <= 0:
            continue
        # The longer transfer of a pair counts as the last to arrive.
        transfer_us = max(_transfer_us(one, timeline) for one in unit)
        transfers_us += min(gap_us, transfer_us)
        stages_us += max(0.0, gap_us - transfer_us)
    return transfers_us, stages_us


def _transfer_us(one: Pass, timeline: StepTimeline) -> float:
    """Time in µs of the transfer that a pass waits for."""
    if timeline.messages.read(one) is None:
        return 0.0
    if one.kind is Kind.FORWARD:
        return timeline.send_forward_us[one.chunk - 1]
    return timeline.send_backward_us[one.chunk + 1]


def _waits_in_total(estimate: Estimate) -> tuple[float, float, float]:
    """`_waits_of_passes` of a step that is not listed: none for transfers."""
    shape = values_of(estimate.parallelism, "schedule", "pp", "micro_batches", "virtual_stages")
    simulated = simulate(**shape, durations=estimate.durations)
    busy_us = _busy_us(estimate)
    between_us = simulated.compute_end_us[0] - busy_us + simulated.step_us[0] - simulated.end_us[0]
    reduce_us = np.maximum(0.0, simulated.all_reduce_end_us[0] - simulated.compute_end_us[0])
    return 0.0, max(0.0, float(between_us.mean())), float(reduce_us.mean())
