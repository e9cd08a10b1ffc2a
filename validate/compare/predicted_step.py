"""What an estimate predicts for the traced ranks: operators by pass, and the parts that their sums make of a step."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from kernelcast.runtime import Estimate
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.component import ONCE_PER_UPDATE, Component


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCalls:
    """All calls of one operator at one workload in one pass, summed over the stages; seconds of a step."""

    operator: str
    roles: tuple[str, ...]
    pass_: str  # forward, backward, update or once (collectives)
    vector: tuple[int, ...]
    calls: int
    time_s: float
    low_s: float
    high_s: float

    @property
    def is_collective(self) -> bool:
        """Whether processes exchange data."""
        return OPERATORS[self.operator].is_collective

    def message_bytes(self, element_bytes: int) -> int:
        """Bytes of one call as nccl-tests count them: of an all-gather, the gathered whole."""
        elements, *layout = self.vector
        return elements * element_bytes * (prod(layout) if OPERATORS[self.operator].is_sharded else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """What the stages of the traced ranks do in a step; `parts_s` are means over those stages."""

    calls: tuple[PredictedCalls, ...]
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
    return PredictedStep(
        calls=tuple(
            PredictedCalls(
                operator=operator,
                roles=tuple(roles[operator, pass_, vector]),
                pass_=pass_,
                vector=vector,
                calls=round(count),
                time_s=time_s,
                low_s=low_s,
                high_s=high_s,
            )
            for (operator, pass_, vector), (count, time_s, low_s, high_s) in sums.items()
        ),
        parts_s=_mean([_parts(one, estimate.step_time_s) for one in by_pass.values()]),
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


def _mean(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in parts) / len(parts) for name in parts[0]}
