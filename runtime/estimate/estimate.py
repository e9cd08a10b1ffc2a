"""The answer of a prediction: the step time and its parts, with a documented JSON form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.answers.asking import Question, question
from kernelcast.runtime.answers.predictor import Answer
from kernelcast.runtime.answers.uncertainty import never_compared
from kernelcast.runtime.answers.warnings import AnswerWarning
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.catalogue import power_laws
from kernelcast.runtime.dataclass import asdict, dataclass, field
from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.estimate.doubts import (
    Doubt,
    Grade,
    KnownShares,
    Provenance,
    grade_of,
    grouped,
    known_shares,
    share_of,
)
from kernelcast.runtime.estimate.step_spread import StepSpread, spread_of
from kernelcast.runtime.estimate.utilisation import hardware_flops, model_flops
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.pipeline.durations import Durations
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.decomposition import Decomposition
from kernelcast.runtime.step.op import ONCE_PER_UPDATE, Component

if TYPE_CHECKING:
    from pandas import DataFrame

    from kernelcast.runtime.estimate.energy import Energy

ESTIMATE_FORMAT = "kernelcast.estimate/2"
_US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The paper's components (Table IX), in seconds; one that the layout does not have is 0.

    `layer_*` are one layer, `stage_*_max` the slowest stage for one micro-batch (sends included),
    `dp_all_reduce` the first stage's gradients combined (ZeRO-2: a reduce-scatter), `max_update` the largest
    optimizer + all-gather of a stage and `dp_all_gather` the all-gather in it, `tp_all_reduce` one
    synchronisation of the tensor-parallel group (with sequence parallelism a gather and a reduce-scatter) and
    `pp_p2p` one transfer. Not in the paper, and only in layouts with experts or context parallelism: `expert_exchange`
    and `context_exchange` are the forward collectives of one layer's experts (dispatch and combine) and attention.
    """

    layer_forward_s: float
    layer_backward_s: float
    stage_forward_max_s: float
    stage_backward_max_s: float
    dp_all_reduce_s: float
    dp_all_gather_s: float
    max_update_s: float
    tp_all_reduce_s: float
    pp_p2p_s: float
    expert_exchange_s: float = 0.0
    context_exchange_s: float = 0.0

    def to_dict(self) -> dict[str, float]:
        """Seconds by the names of Table IX."""
        return {
            "Encoder_Fwd": self.layer_forward_s,
            "Encoder_Bwd": self.layer_backward_s,
            "Stage_Fwd_Max": self.stage_forward_max_s,
            "Stage_Bwd_Max": self.stage_backward_max_s,
            "DP_Allreduce": self.dp_all_reduce_s,
            "DP_Allgather": self.dp_all_gather_s,
            "Max_Update": self.max_update_s,
            "MP_Allreduce": self.tp_all_reduce_s,
            "PP_P2P": self.pp_p2p_s,
            **({"EP_Alltoall": self.expert_exchange_s} if self.expert_exchange_s else {}),
            **({"CP_Exchange": self.context_exchange_s} if self.context_exchange_s else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One stage, per device: forward and backward of one micro-batch with its sends; the rest of one update.
    `update_ops_s` are the ops between the reduction of gradients and the gather of parameters, by name.
    """

    index: int
    layers: int
    parameters: int
    forward_s: float
    backward_s: float
    all_reduce_s: float
    update_ops_s: Mapping[str, float]
    all_gather_s: float

    @property
    def optimizer_s(self) -> float:
        """The optimizer alone."""
        return self.update_ops_s.get(Component.OPTIMIZER, 0.0)

    @property
    def computed_s(self) -> float:
        """Everything between the reduction of gradients and the gather of parameters."""
        return sum(self.update_ops_s.values())

    @property
    def update_s(self) -> float:
        """Everything in an update after the reduction of gradients."""
        return self.computed_s + self.all_gather_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "optimizer_s": self.optimizer_s, "update_s": self.update_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """Calls of an operator on a stage per micro-batch or per update, with the 90 % interval of one call's time."""

    stage: int
    component: Component
    operator: str
    role: str
    direction: Direction
    vector: tuple[int, ...]
    count: int
    time_us: float
    low_us: float
    high_us: float
    total_s: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The predicted time of one training step (one update of all parameters) and its parts. Immutable.

    `interval_s` are the 5th and 95th percentile of the step time, or None if not requested;
    `bubble_share` the part of the pipeline's time in which the average stage waits. `cluster_source` is where the
    devices per node come from: "asked", "fabric", "bundle", or "one node" where the bundle has no fabric and the whole
    job is assumed to lie on one node. `processes_per_node` compute at once on the fullest node; `answered_with` are the
    measured numbers of processes per node that its operators' times come from. `peak` is the rate that utilisation
    refers to, None where it is unknown. `concerned` are the warnings, each with the questions that it is about.
    `parts`, `answers` and `durations` (one configuration) are what it was added up from.
    """

    step_time_s: float
    interval_s: tuple[float, float] | None
    timeline: TimelineKind
    bubble_share: float
    tokens_per_s: float
    components: Components
    stages: tuple[StageEstimate, ...]
    memory: Memory
    concerned: Mapping[AnswerWarning, frozenset[Question]] = field(repr=False)
    model: ModelConfig
    parallelism: Parallelism
    cluster: Cluster
    cluster_source: str
    processes_per_node: int
    answered_with: tuple[int, ...]
    bucket_entries: int
    provenance: Provenance
    peak: Peak | None
    parts: Decomposition = field(repr=False)
    answers: Mapping[Question, Answer] = field(repr=False)
    durations: Durations = field(repr=False, compare=False)

    def covers(self, step_time_s: float) -> bool | None:
        """Whether a measured step lies in the interval; None without an interval."""
        return None if self.interval_s is None else self.interval_s[0] <= step_time_s <= self.interval_s[1]

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return tuple(stage.layers for stage in self.stages)

    @property
    def padded_vocabulary_size(self) -> int:
        """Rows of the vocabulary as it is trained (eq. 1, 2)."""
        return int(self.parts.sizes.vocabulary * self.parallelism.tp)

    @property
    def warnings(self) -> tuple[AnswerWarning, ...]:
        """All warnings about the estimate, one by one; `doubts` groups them."""
        return tuple(self.concerned)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The warnings grouped by cause, each with the share of the step that it concerns; new at each access."""
        return grouped(self.concerned, self.times_s)

    @property
    def grade(self) -> Grade | None:
        """Good, rough or guess, with the reason; None without an interval."""
        return self._grade(self.doubts)

    def _grade(self, doubts: Sequence[Doubt]) -> Grade | None:
        if self.interval_s is None:
            return None
        # Steps that a bundle was calibrated by were of its device.
        named = "" if self.peak is None or self.provenance.calibration is not None else self.peak.device
        like = never_compared(self.model, self.parallelism, named)
        return grade_of(self.step_time_s, self.interval_s, doubts, like)

    @property
    def doubtful_share(self) -> float:
        """Share of the operators' time that any warning concerns, 0 to 1."""
        return share_of(frozenset().union(*self.concerned.values()), self.times_s) or 0.0

    @property
    def known(self) -> KnownShares:
        """Shares of the operators' time that were measured, transferred or assumed; new at each access."""
        return known_shares(self.concerned, self.times_s)

    @property
    def energy(self) -> Energy | None:
        """Energy of the step; None where the device's power was not measured. New at each access."""
        of = None if self.peak is None else device_named(self.peak.device)
        law = None if of is None else power_laws().get(of.name)
        if of is None or law is None:
            return None
        from kernelcast.runtime.estimate.energy import energy_of

        return energy_of(
            self.times_s,
            answers=self.answers,
            replicas=self.parallelism.world_size // self.parallelism.pp,
            devices=self.parallelism.world_size,
            step_time_s=self.step_time_s,
            of=of,
            law=law,
            dtype=self.provenance.dtype,
        )

    @property
    def spread(self) -> StepSpread | None:
        """How single steps scatter on public runs of this size; None for CPUs and unknown devices."""
        known = self.peak is not None and device_named(self.peak.device) is not None
        return spread_of(self.parallelism.world_size) if known else None

    @cached_property
    def times_s(self) -> dict[Question, float]:
        """Time of the calls that ask each question, in a step, over all stages."""
        times_s: dict[Question, float] = {}
        for asked, calls, time_us in self.work():
            times_s[asked] = times_s.get(asked, 0.0) + calls * time_us / _US_PER_S
        return times_s

    def work(self) -> Iterator[tuple[Question, int, float]]:
        """Questions of a step with their calls, one device per stage, and the time of one call in µs."""
        for component, call in self.parts.all_calls():
            asked = question(call)
            if asked in self.answers:
                yield asked, self.repeats(component) * call.count, self.answers[asked][0]

    def repeats(self, component: Component) -> int:
        """How often the calls of a component run in a step."""
        return 1 if component in ONCE_PER_UPDATE else self.parallelism.micro_batches

    def warning_values(self) -> dict[str, Any]:
        """Plain values of the grade and all warnings, one by one with their share, and of their groups."""
        doubts = self.doubts
        grade = self._grade(doubts)
        return {
            "grade": None if grade is None else grade.to_dict(),
            "warnings": [
                {**warning.to_dict(), "share": share_of(questions, self.times_s)}
                for warning, questions in self.concerned.items()
            ],
            "warning_groups": [doubt.to_dict() for doubt in doubts],
        }

    @property
    def per_node_text(self) -> str:
        """Devices per node and the source of this number: `8 per node (fabric)`."""
        return f"{self.cluster.gpus_per_node:,} per node ({self.cluster_source.replace('asked', 'given')})"

    @cached_property
    def model_flops(self) -> float:
        """FLOPs of the model in this step of the whole job, without recomputation (utilisation.py)."""
        return model_flops(self.parts)

    @property
    def flops_per_s_per_device(self) -> float:
        """`model_flops` per second and device."""
        return self.model_flops / (self.step_time_s * self.parallelism.world_size)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of the devices' peak that the model uses; None without a peak."""
        return None if self.peak is None else self.flops_per_s_per_device / self.peak.flops_per_s

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation: as `mfu`, with recomputation; None without a peak."""
        if self.mfu is None:
            return None
        return self.mfu * hardware_flops(self.parts) / self.model_flops

    @property
    def operators(self) -> tuple[OperatorRow, ...]:
        """The calls of every stage; a new tuple at each access."""
        return tuple(OperatorRow(**row) for row in self._rows())

    def _rows(self, plain: bool = False) -> Iterator[dict[str, Any]]:
        """The fields of `OperatorRow`; `plain` as JSON has them."""
        for stage in range(len(self.parts.stages)):
            for component, call in self.parts.calls(stage):
                answer = self.answers.get(question(call))
                if answer is None:  # left out of the sum
                    continue
                time_us, low_us, high_us = answer
                yield {
                    "stage": stage,
                    "component": str(component) if plain else component,
                    "operator": call.operator,
                    "role": call.role,
                    "direction": str(call.direction) if plain else call.direction,
                    "vector": list(call.shape) if plain else call.shape,
                    "count": call.count,
                    "time_us": time_us,
                    "low_us": low_us,
                    "high_us": high_us,
                    "total_s": call.count * time_us / _US_PER_S,
                }

    def to_pandas(self) -> DataFrame:
        """A row for each operator that a stage calls (`OperatorRow`; docs/python.md); UsageError without pandas."""
        from kernelcast.runtime.data_frame import data_frame

        return data_frame(self._rows(plain=True))

    def _repr_html_(self) -> str:
        """HTML that a notebook shows."""
        # Pages are made of answers; this one import goes the other way, and only where a notebook asks.
        from kernelcast.runtime.views.notebook import estimate_html

        return estimate_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, form `kernelcast.estimate/2` (docs/json.md). Later versions may add keys."""
        memory = self.memory
        return {
            "format": ESTIMATE_FORMAT,
            **plain_values(self, "step_time_s", "interval_s", "timeline", "bubble_share", "tokens_per_s"),
            "model_flops": self.model_flops,
            "tflops_per_device": self.flops_per_s_per_device / 1e12,
            **plain_values(self, "mfu", "hfu", "peak", "components", "layer_counts", "stages"),
            "memory": {
                **plain_values(memory, "gpu_memory_bytes", "source", "reserved_bytes", "communicators"),
                **plain_values(memory, "largest_bytes", "interval_bytes", "margin_bytes"),
                **values_of(memory, "fits", "fit_verdict", "fit_probability"),
                "stages": [
                    {**asdict(stage), "total_bytes": stage.total_bytes, "fits": memory.fits_stage(stage)}
                    for stage in memory.stages
                ],
            },
            "operators": list(self._rows(plain=True)),
            **plain_values(self, known="known", step_spread="spread", energy="energy"),
            **self.warning_values(),
            "model": {**asdict(self.model), "padded_vocabulary_size": self.padded_vocabulary_size},
            "parallelism": {
                **asdict(self.parallelism),
                "world_size": self.parallelism.world_size,
                "global_batch": self.parallelism.samples_per_update,
                "bucket_entries": self.bucket_entries,
            },
            "cluster": values_of(self, "cluster.gpus_per_node", source="cluster_source"),
            "concurrency": plain_values(self, "processes_per_node", "answered_with"),
            "provenance": self.provenance.to_dict(),
        }
