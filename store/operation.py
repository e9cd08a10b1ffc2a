"""Records of how a site operates: logs of jobs that failed or not, and times of single steps of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kernelcast.runtime.errors import UsageError
from kernelcast.store.canonical import Record


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
        if self.failures != len(self.failed_s) or self.node_days < 0 or self.gpus_per_node < 1:
            raise UsageError(
                "failure log: expected as many failed_s as failures, node_days from 0, gpus_per_node from 1"
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
        if not self.times_s or min(self.times_s) <= 0 or self.gpus < 1:
            raise UsageError("step times: expected at least one time above 0, and one GPU or more")
