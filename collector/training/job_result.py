"""Results of one job's real training steps: step times, the paper's components, the time of every operator.

Waiting is no work: for a collective the shortest duration in the group counts, because that process came last. A
message between stages counts from its start until its waiting receiver has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kernelcast.collector.training.groups import members
from kernelcast.collector.training.job import TrainingJob, Turn
from kernelcast.collector.training.marks import called, row_of
from kernelcast.collector.training.step_trace import LOSS_SUM, TENSOR_SUM
from kernelcast.store import quiet_us

_REDUCED, _GATHERED = called("all_reduce", "data"), called("all_gather", "data")
_COLLECTIVES = {
    TENSOR_SUM: "tensor",
    LOSS_SUM: "tensor",
    _REDUCED: "data",
    _GATHERED: "data",
    called("all_reduce", "expert_data"): "expert_data",
    called("all_to_all", "context"): "context",
    called("all_to_all", "expert"): "experts",
    called("all_to_all", "expert_counts"): "experts",
}
"""Collectives of a step by their marks, and the kind of group that calls them."""
_US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """One operator and direction in a traced step, averaged over the processes of a stage and summed over stages.

    `known` is False for kernels of no operator, listed by their own names. `step_us` is the 10th percentile over the
    traced steps.
    """

    operator: str
    direction: str
    known: bool
    calls: float
    step_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """All turns of one job. Seconds, unless a name says otherwise."""

    job: TrainingJob
    turns: tuple[Turn, ...]

    @property
    def steps_s(self) -> tuple[float, ...]:
        """All timed steps, in order."""
        return tuple(step for turn in self.turns for step in turn.steps_s)

    @property
    def reference_us(self) -> tuple[float, ...]:
        """Time of the reference product before every step."""
        return tuple(time for turn in self.turns for time in turn.reference_us)

    @property
    def traces(self) -> tuple[dict[str, Any], ...]:
        """Traces of the last traced turn by rank (see rank_trace); empty without one."""
        return next((turn.traces for turn in reversed(self.turns) if turn.traces), ())

    def components_s(self) -> dict[str, float]:
        """The paper's components (Table IX) from the traces, without components that the layout lacks."""
        if not self.traces:
            return {}
        return _Traces(self.job, self.traces).components_s()

    def operator_times(self) -> list[OperatorTime]:
        """All operators of the traced steps and idle times of the main thread, the longest first."""
        return _Traces(self.job, self.traces).operator_times() if self.traces else []


class _Traces:
    """The traces of all ranks, with collectives without waiting."""

    def __init__(self, job: TrainingJob, ranks: Sequence[dict[str, Any]]) -> None:
        self._job, self._ranks = job, ranks
        self._operators = [
            {(name, direction, known): steps for name, direction, known, steps in rank["operators"]}
            for rank in ranks
        ]
        self._waited = [self._without_waiting(rank) for rank in range(len(ranks))]

    def _transfers(self, rank: int, name: str) -> list[list[float]]:
        """µs of every call of a collective in each step, for the process that came last."""
        key = (name, "once", True)
        ranks = members(self._job.parallelism, rank, _COLLECTIVES[name])
        group = [self._operators[other].get(key, []) for other in ranks]
        return [[min(call) for call in zip(*step, strict=False)] for step in zip(*group, strict=False)]

    def _without_waiting(self, rank: int) -> dict[tuple[str, str, bool], list[list[float]]]:
        own = dict(self._operators[rank])
        for name in _COLLECTIVES:
            if (name, "once", True) in own:
                own[name, "once", True] = self._transfers(rank, name)
        return own

    @property
    def _per_stage(self) -> int:
        return self._job.parallelism.tp * self._job.parallelism.replicas

    def _stage_ranks(self) -> list[list[int]]:
        per_stage = self._per_stage
        return [list(range(first, first + per_stage)) for first in range(0, len(self._ranks), per_stage)]

    def operator_times(self) -> list[OperatorTime]:
        found: dict[tuple[str, str, bool], tuple[float, float]] = {}
        for ranks in self._stage_ranks():
            for rank in ranks:
                for key, steps in self._with_idle(rank).items():
                    calls, time_us = found.get(key, (0.0, 0.0))
                    found[key] = (
                        calls + max(map(len, steps)) / len(ranks),
                        time_us + quiet_us([sum(step) for step in steps]) / len(ranks),
                    )
        message_us, messages = self._message_us(), self._messages()
        if message_us is not None:
            found[called("point_to_point", "pipeline"), "once", True] = (messages, messages * message_us)
        return sorted(
            (
                OperatorTime(operator=name, direction=direction, known=known, calls=calls, step_us=step_us)
                for (name, direction, known), (calls, step_us) in found.items()
            ),
            key=lambda one: -one.step_us,
        )

    def _with_idle(self, rank: int) -> dict[tuple[str, str, bool], list[list[float]]]:
        idle = {
            (f"idle {where}", "once", False): [[time_us] for time_us in steps]
            for where, steps in self._ranks[rank]["idle"].items()
        }
        return self._waited[rank] | idle

    def components_s(self) -> dict[str, float]:
        layout = self._job.parallelism
        message_us = self._message_us()
        p2p_us = message_us or 0.0
        found_us = {
            "Encoder_Fwd": self._layer_us("forward"),
            "Encoder_Bwd": self._layer_us("backward"),
            "Stage_Fwd_Max": 0.0,
            "Stage_Bwd_Max": 0.0,
        }
        stages = self._stage_ranks()
        for index, ranks in enumerate(stages):
            forward_us = self._pass_us(ranks, "forward") + self._pass_us(ranks, "loss")
            backward_us = self._pass_us(ranks, "backward")
            # Messages are charged to the sender, as in the prediction.
            forward_us += p2p_us if index < len(stages) - 1 else 0.0
            backward_us += p2p_us if index > 0 else 0.0
            found_us["Stage_Fwd_Max"] = max(found_us["Stage_Fwd_Max"], forward_us)
            found_us["Stage_Bwd_Max"] = max(found_us["Stage_Bwd_Max"], backward_us)
        if layout.replicas > 1:
            found_us["DP_Allreduce"] = self._sum_us(stages[0], _REDUCED)
        updates = [(self._update_us(ranks), self._sum_us(ranks, _GATHERED)) for ranks in stages]
        largest = max(updates, key=sum)
        if layout.replicas > 1 and layout.zero:
            found_us["DP_Allgather"] = largest[1]
        found_us["Max_Update"] = sum(largest)
        if layout.tp > 1:
            found_us["MP_Allreduce"] = self._sum_us_of(0, TENSOR_SUM)
        if message_us is not None:
            found_us["PP_P2P"] = message_us
        return {name: time_us / _US_PER_S for name, time_us in found_us.items()}

    def _sum_us(self, ranks: Sequence[int], name: str) -> float:
        """Quiet time of a collective per step, mean of the ranks."""
        times = [self._waited[rank].get((name, "once", True)) for rank in ranks]
        return sum(quiet_us([sum(step) for step in steps]) for steps in times if steps) / len(ranks)

    def _update_us(self, ranks: Sequence[int]) -> float:
        """The optimizer and the other operators of the update (runtime/step/layers/update.py), for the slowest rank."""
        times = [
            sum(
                quiet_us([sum(step) for step in steps])
                for (name, _, known), steps in self._operators[rank].items()
                # The all-reduce of the norm includes waiting, and is left out.
                if known and (row := row_of(name)) is not None and row.per_update
            )
            for rank in ranks
        ]
        return max(times, default=0.0)

    def _layer_us(self, direction: str) -> float:
        """One layer's work and its all-reduces; mean of the ranks."""
        name = f"layer_{direction}"
        times = [
            quiet_us([own for own, _ in rank[name]])
            + self._sum_us_of(number, TENSOR_SUM) * max((calls for _, calls in rank[name]), default=0)
            for number, rank in enumerate(self._ranks)
            if rank[name]
        ]
        return sum(times) / len(times) if times else 0.0

    def _pass_us(self, ranks: Sequence[int], name: str) -> float:
        """One micro-batch's passes and their all-reduces over all chunks of a stage; mean of its ranks."""
        times = [self._rank_pass_us(rank, name) for rank in ranks if self._ranks[rank][name]]
        return fmean(times) if times else 0.0

    def _rank_pass_us(self, rank: int, name: str) -> float:
        layout, passes = self._job.parallelism, self._ranks[rank][name]
        # Chunks of a stage take different times: only whole steps with all passes are comparable.
        is_alike = layout.virtual_stages == 1 or name == "loss"
        micro_batches = 1 if is_alike else layout.micro_batches
        together = 1 if is_alike else micro_batches * layout.virtual_stages
        groups = [passes[first : first + together] for first in range(0, len(passes), together)]
        own_us = quiet_us([sum(own for own, _ in group) for group in groups])
        sums = max(sum(calls for _, calls in group) for group in groups)
        sum_us = self._sum_us_of(rank, LOSS_SUM if name == "loss" else TENSOR_SUM)
        return float(own_us + sum_us * sums) / micro_batches

    def _sum_us_of(self, rank: int, name: str) -> float:
        """Mean time of a sum over the rank's tensor-parallel group."""
        if self._job.parallelism.tp == 1:
            return 0.0
        times = [t for step in self._transfers(rank, name) for t in step]
        return fmean(times) if times else 0.0

    def _messages(self) -> float:
        """Messages of one step, both ways, per tensor- and data-parallel rank."""
        layout = self._job.parallelism
        return 2.0 * layout.micro_batches * (layout.chunks - 1)

    def _message_us(self) -> float | None:
        """Mean time from sending to receiving of messages between two stages whose receiver waited.

        The mean, as for all communication (docs/method.md, Measuring). None where messages cannot be matched: on GPUs,
        and with more than two stages.
        """
        per_stage = self._per_stage
        if self._job.parallelism.pp != 2:
            return None
        times: list[float] = []
        for first in range(per_stage):
            times += self._between(first, first + per_stage) + self._between(first + per_stage, first)
        return fmean(times) if times else None

    def _between(self, sender: int, receiver: int) -> list[float]:
        sends = [m for m in self._ranks[sender]["messages"] if m[0] == "send"]
        receives = [m for m in self._ranks[receiver]["messages"] if m[0] == "recv"]
        # For a message sent before its receiver waited, only the rest would be visible.
        return [
            end - sent
            for (_, sent, _), (_, start, end) in zip(sends, receives, strict=False)
            if start <= sent < end
        ]
