"""Records of training steps, of predictions for them, and of trained regressors."""

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
