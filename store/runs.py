"""Where measurements come from: runs, their sources, and traces of real runs with their events.

An event is a kernel, a copy or a fill (on a CPU a call with self time, or a collective in gloo's threads). An
`EventKind`, stored once, holds the common properties of many events. Times of events are whole nanoseconds from the
start of the trace.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from kernelcast.runtime.bundle.fingerprint import (
    DIGEST_HEX_DIGITS,
    ComputeFingerprint,
    FabricFingerprint,
    SoftwareFingerprint,
)
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.json_text import values_of
from kernelcast.store.canonical import Record, canonicalise, record_digest
from kernelcast.store.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Record):
    """Where rows come from. `name` is a program or a file's base name, never a path.

    `file_digest` is the SHA-256 of an imported file; `reference` is where it was published (address or citation).
    """

    table: ClassVar[str] = "source"
    kind: str  # "collector", "import" or "trace"
    name: str
    licence: str = ""
    file_digest: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("collector", "import", "trace"):
            raise UsageError(f"source kind: found {self.kind!r}, expected collector, import or trace")


KERNELCAST_COLLECTOR = Source(kind="collector", name="kernelcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation that measured or imported.

    `command` and `plan` are names without paths (`collect compute`, `quick`). `conditions` holds other influences on a
    time, such as `processes_per_node`; a collection resumes only a run with equal conditions. `site` and `note` are
    free text outside the id, so that a database can be shared without them.
    """

    started_at: str | None = None  # UTC ISO-8601; None if an imported file has no date
    kernelcast_version: str = ""  # empty, like code_digest, if another program measured
    code_digest: str = ""  # of the code that measured
    command: str
    compute_id: str
    software_id: str
    fabric_id: str | None = None  # None if none was used
    plan: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    source: Source = KERNELCAST_COLLECTOR
    site: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        canonicalise(self, "run")

    @property
    def id(self) -> str:
        """Digest of all fields but `site` and `note`."""
        return record_digest("run", self.columns)

    @property
    def measured_under(self) -> dict[str, Any]:
        """Hardware, software, fabric and conditions, as filters on samples (read.py)."""
        return values_of(self, "compute_id", "software_id", "fabric_id", "conditions")

    @property
    def columns(self) -> dict[str, Any]:
        """The row in table `run`, without the id."""
        names = {field.name for field in fields(self)} - {"source", "site", "note"}
        return {**{name: getattr(self, name) for name in names}, "source_id": self.source.id}


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedTrace(Record):
    """The trace of one process of a real run: facts about the job, and how much of the trace was recognised.

    A *kernel* is a kernel, copy or fill on the device; on a CPU a call with self time. It is attributed if its host
    operator is known, and recognised if it is part of a sample.
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
        Record.__post_init__(self)
        if max(self.recognised_count, self.attributed_count) > self.kernel_count:
            raise UsageError("trace: expected no more recognised or attributed kernels than kernels")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind(Record):
    """What an event is; fields that are unknown or do not apply are empty, 0 or None."""

    table: ClassVar[str] = "event_kind"
    name: str
    category: str  # the profiler's
    class_: str  # compute, communication or memory
    host_operator: str = ""
    shapes: str = ""  # of that operator's inputs, JSON list
    direction: str = ""
    operator: str = ""
    role: str = ""
    dtype: str = ""
    variant: str = ""
    vector: str = ""  # JSON list
    reason: str = ""  # why it is part of no operator
    batch: int | None = None  # of a matrix product [batch, m, k] times [batch, k, n]
    m: int | None = None
    k: int | None = None
    n: int | None = None
    collective: str = ""
    group_ranks: str = ""
    group_size: int | None = None
    message_bytes: int | None = None  # as nccl-tests count them; of a copy or fill its bytes
    grid: str = ""  # JSON list of three
    block: str = ""
    registers: int | None = None  # of a thread
    occupancy_percent: float | None = None


KIND_COLUMNS = tuple(field.name.rstrip("_") for field in fields(EventKind))


class TracedEvent(NamedTuple):
    """One event; times in ns from the start of the trace."""

    kind: EventKind
    start_ns: int
    duration_ns: int
    exposed_ns: int  # while no event of an earlier class ran: compute, communication, memory
    idle_ns: int  # while nothing ran on the device before it
    late_ns: int | None  # part of `idle_ns` before its launch; None: launch not recorded
    device: int
    stream: int
    step: int | None = None  # position in the timeline's steps
    launch_ns: int | None = None
    call: int | None = None  # number of the launching host call, shared by its events
    correlation: int | None = None
    scope: str = ""  # annotations and modules around the launch, outermost first
    sample_id: str = (
        ""  # its sample (or the position in `Timeline.samples`) and repetition, not part of the timeline's id
    )
    repetition: int | None = None


Columns = Sequence[Sequence[Any]]
"""Events as a list for each field of `TracedEvent`, in that order."""


class EventColumns(Iterable[TracedEvent]):
    """Events that are held as columns."""

    def batches(self) -> Iterator[Columns]:
        """All events, many at a time."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[TracedEvent]:
        for columns in self.batches():
            yield from map(TracedEvent, *columns)


EVENTS_AT_ONCE = 10_000


def batches(events: Iterable[TracedEvent]) -> Iterator[Columns]:
    """The events as columns, many at a time."""
    if isinstance(events, EventColumns):
        yield from events.batches()
        return
    left = iter(events)
    while part := list(islice(left, EVENTS_AT_ONCE)):
        yield list(zip(*part, strict=True))


CUT = " (cut)"
"""Ends the name of a step before whose end the recording ended."""


class TracedStep(NamedTuple):
    """A step as the host marked it; times in ns from the start of the trace."""

    name: str
    start_ns: int
    duration_ns: int


class TraceClock(NamedTuple):
    """The clock of a trace on the clock of its run."""

    start_ns: int  # from the first event of the run to the start of the trace
    drift: float  # seconds that the run's clock gains in one second of the trace's
    error_ns: int  # spread of the ends of collectives around it; 0: a host's own clock


class MatchedCollective(NamedTuple):
    """An event that is one rank's part of a collective that several ranks ran."""

    sequence: int  # of the event
    collective_number: int  # in the run, the same on all ranks
    compute_ns: int  # since the start of the rank's matched collective before
    memory_ns: int
    host_ns: int  # while the device waited for its host


class LostCollective(NamedTuple):
    """A rank's part of a matched collective that its trace lacks."""

    collective_number: int
    run_ns: int  # from the first event of the run to its arrival
    duration_ns: int


class StreamWait(NamedTuple):
    """An event that its stream made wait for one of another stream."""

    sequence: int
    awaited_sequence: int


class HostTime(NamedTuple):
    """Calls of the host, summed by step and name."""

    step: int | None
    kind: str  # operator (inside no other), annotation, or runtime (of the device)
    name: str
    calls: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps and events of a trace; `events` can be iterated more than once.

    The last fields are not part of the id; `samples` are stored with it, before its events.
    """

    trace_id: str
    steps: tuple[TracedStep, ...]
    events: Iterable[TracedEvent]
    clock: TraceClock | None = None
    collectives: Sequence[MatchedCollective] = ()
    lost: Sequence[LostCollective] = ()
    waits: Sequence[StreamWait] = ()
    host: Sequence[HostTime] = ()
    samples: Sequence[Sample] = ()

    @property
    def id(self) -> str:
        """Digest of trace, steps and events."""
        digest = TimelineDigest(self)
        for columns in batches(self.events):
            digest.add(columns)
        return digest.id


class TimelineDigest:
    """The id of a timeline, while its events are read."""

    def __init__(self, timeline: Timeline) -> None:
        self._digest = hashlib.sha256(json.dumps([timeline.trace_id, timeline.steps]).encode())
        self._ids: dict[int, tuple[str, EventKind]] = {}  # by identity, which is quicker than by content

    def add(self, columns: Columns) -> list[str]:
        """Add the next events; returns the ids of their kinds."""
        kinds, *values, _, _ = columns
        known = self._ids
        known |= {
            id(kind): (kind.id, kind)
            for kind in {id(one): one for one in kinds}.values()
            if id(kind) not in known
        }
        ids = [known[id(kind)][0] for kind in kinds]
        line = f"%s [{', '.join(['%r'] * len(values))}]\n"
        self._digest.update("".join([line % row for row in zip(ids, *values, strict=True)]).encode())
        return ids

    @property
    def id(self) -> str:
        """The id of what was added."""
        return self._digest.hexdigest()[:DIGEST_HEX_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run with everything that it measured: samples, and traces with their unrecognised kernels and timelines."""

    run: Run
    compute: ComputeFingerprint
    fabric: FabricFingerprint | None
    software: SoftwareFingerprint
    samples: Sequence[Sample] = ()
    traces: Sequence[tuple[IngestedTrace, Sequence[UnrecognisedKernels]]] = ()
    timelines: Iterable[Timeline] = ()
