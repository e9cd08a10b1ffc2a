"""Records of traces of real runs, other than the samples found in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import UsageError
from kernelcast.store.canonical import Record, plain_mapping, rounded_us, utc_moment
from kernelcast.store.records import Sample
from kernelcast.store.runs import Run

if TYPE_CHECKING:
    from kernelcast.store.timelines import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedTrace(Record):
    """The trace of one process of a real run: what it records about the job, and how much of it was recognised.

    A *kernel* is what ran on the device: kernels, copies, fills; on a CPU a call with time of its own. It is
    attributed where its host operator is known, and recognised where it is part of a sample.
    """

    table: ClassVar[str] = "trace"
    run_id: str
    file_digest: str  # SHA-256 of the file
    rank: int | None = None  # None, here and below: unknown
    world_size: int | None = None
    backend: str = ""
    process_groups: tuple[Mapping[str, Any], ...] = ()  # name, size and ranks of each
    span_us: float
    event_count: int
    kernel_count: int
    kernel_us: float
    attributed_count: int
    attributed_us: float
    recognised_count: int
    recognised_us: float
    measured_at: str | None = None  # UTC ISO-8601

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("span_us", "kernel_us", "attributed_us", "recognised_us"):
            put(self, name, rounded_us(getattr(self, name), f"trace {name}"))
        if max(self.recognised_count, self.attributed_count) > self.kernel_count:
            raise UsageError("trace: expected no more recognised or attributed kernels than kernels")
        put(self, "process_groups", tuple(plain_mapping(g, "process group") for g in self.process_groups))
        if self.measured_at is not None:
            put(self, "measured_at", utc_moment(self.measured_at, "trace measured_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecognisedKernels(Record):
    """Kernels of a trace that are part of no sample: number and total time per name, stream and host operator."""

    table: ClassVar[str] = "unrecognised_kernel"
    trace_id: str
    name: str
    category: str  # the profiler's: kernel, gpu_memcpy, gpu_memset; on a CPU cpu_op
    stream: int
    host_operator: str = ""  # empty where unknown
    shapes: str = ""  # of that operator's inputs, JSON list; empty where not recorded
    reason: str
    kernel_count: int
    total_us: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "total_us", rounded_us(self.total_us, "kernels total_us"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """A real run: what it ran on, its traces with their unrecognised kernels, and the samples found in them."""

    run: Run
    compute: ComputeFingerprint
    fabric: FabricFingerprint | None
    software: SoftwareFingerprint
    samples: Sequence[Sample]
    traces: Sequence[tuple[IngestedTrace, Sequence[UnrecognisedKernels]]]
    timelines: Sequence["Timeline"] = ()
