"""Records of training steps, of predictions for them, of trained regressors, and of the operation of a site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.store.canonical import Record
from kernelcast.store.records import Status
from kernelcast.store.statistics import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep(Record):
    """A real training step with its optimizer, timed end to end several times. All times in seconds.

    `model` is the model's configuration as the runtime reads it. `components_s` are parts measured inside the step,
    name → seconds. `options` holds other settings (ZeRO stage, sequence parallel, …). Published steps may have only
    the minimum.
    """

    table: ClassVar[str] = "step"
    run_id: str
    model: Mapping[str, Any]
    pp: int
    tp: int
    dp: int
    micro_batch: int  # samples
    micro_batches: int  # per update and pipeline
    schedule: str  # such as "1F1B"; empty without a pipeline
    recomputation: bool
    dtype: str
    framework: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    status: Status = Status.OK
    reason: str = ""
    min_s: float | None = None
    p10_s: float | None = None
    median_s: float | None = None
    repetitions_s: tuple[float, ...] = ()
    components_s: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None  # of the fullest device
    reference_us: float | None = None  # time of a short fixed kernel
    measured_at: str | None = None  # UTC ISO-8601

    def __post_init__(self) -> None:
        for name in ("pp", "tp", "dp", "micro_batch", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"step: found {name} {getattr(self, name)}, expected at least 1")
        Record.__post_init__(self)
        is_ok = self.status is Status.OK
        if is_ok != (self.min_s is not None) or is_ok == bool(self.reason):
            raise UsageError("step: expected min_s when ok, else a reason and no time")

    @classmethod
    def from_repetitions(cls, *, repetitions_s: Sequence[float], **fields: Any) -> Self:
        """A measured step whose minimum, 10th percentile and median follow from its repetitions (seconds)."""
        return cls(
            repetitions_s=tuple(repetitions_s),
            min_s=percentile(repetitions_s, 0),
            p10_s=percentile(repetitions_s, 0.1),
            median_s=percentile(repetitions_s, 0.5),
            **fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Record):
    """A bundle's prediction for a measured step. All times in seconds."""

    table: ClassVar[str] = "prediction"
    step_id: str
    bundle_digest: str
    timeline: str  # "closed form" or "schedule"
    statistic: str  # of the operators: "time_us" or "quiet_us"
    predicted_s: float
    low_s: float | None = None  # interval, if the estimate has one
    high_s: float | None = None
    components_s: Mapping[str, float] = field(default_factory=dict)
    kernelcast_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRecord(Record):
    """One trained regressor of a bundle, and its error on held-out rows."""

    table: ClassVar[str] = "predictor"
    bundle_digest: str
    operator: str
    direction: Direction
    dtype: str
    algorithm: str  # "random_forest", "xgboost", …
    form: str  # features and target, such as "log(time) on the workload vector"
    hyperparameters: Mapping[str, Any]
    training_rows: int
    validation_error: float  # mean absolute error as a fraction of the time
    size_bytes: int  # of the ONNX model
    trained_at: str  # UTC ISO-8601
    statistic: str  # which time was the target: "time_us" or "quiet_us"
    dataset_digest: str  # see `dataset_digest`
    compute_id: str | None = None
    fabric_id: str | None = None
    software_id: str | None = None
    role: str = ""  # set if it was trained for one role only


_MOST_NODE_S, _MOST_GPUS = 1e17, 10**7  # a stranger's row cannot turn a fit into infinities


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLog(Record):
    """What one log says of jobs: node-days, failures by cause, and node-seconds of each job.

    `failed_s` are node-seconds of jobs that a failure ended, `ended_s` of all others. The file is known by its digest.
    """

    table: ClassVar[str] = "failure_log"
    kind: str  # "sacct", "csv" or "mlperf"
    device_name: str = ""
    gpus_per_node: int
    node_days: float
    failures: int
    unreadable: int = 0  # lines or jobs that were left out
    causes: Mapping[str, int] = field(default_factory=dict)
    failed_s: tuple[float, ...] = ()
    ended_s: tuple[float, ...] = ()
    file_digest: str
    reference: str = ""
    kernelcast_version: str = ""

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        times = (self.node_days, *self.failed_s, *self.ended_s)
        are_possible = (
            all(0 <= one <= _MOST_NODE_S for one in times) and 1 <= self.gpus_per_node <= _MOST_GPUS
        )
        if self.failures != len(self.failed_s) or not are_possible:
            raise UsageError(
                f"failure log: expected as many failed_s as failures, times from 0 to {_MOST_NODE_S:g}, gpus_per_node"
                f" from 1 to {_MOST_GPUS:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes(Record):
    """Times of single steps of one run, in its order, seconds; `start_s` from the process to the first step."""

    table: ClassVar[str] = "step_times"
    publisher: str = ""
    model_name: str = ""
    device_name: str = ""
    gpus: int
    samples_per_step: int | None = None
    times_s: tuple[float, ...]
    start_s: float | None = None
    total_s: float | None = None
    file_digest: str
    licence: str = ""
    reference: str = ""
    kernelcast_version: str = ""

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        possible = 0 < min(self.times_s, default=0.0) <= max(self.times_s, default=0.0) <= _MOST_NODE_S
        if not (possible and 1 <= self.gpus <= _MOST_GPUS):
            raise UsageError(
                f"step times: expected times above 0, to {_MOST_NODE_S:g} s, and 1 to {_MOST_GPUS:,} GPUs"
            )
