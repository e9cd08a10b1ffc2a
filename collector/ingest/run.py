"""`ingest_traces`: stores trace files of real runs in a database, all of them or none."""

import gc
import hashlib
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelcast.collector.ingest.attribute_kernels import extract
from kernelcast.collector.ingest.host_calls import host_times
from kernelcast.collector.ingest.machine import (
    compute_of,
    gpus_per_node_of,
    process_groups,
    recorded_at,
    recorded_ns,
    software_of,
)
from kernelcast.collector.ingest.matching import CollectiveCall, RankCalls, matched
from kernelcast.collector.ingest.occurrences import UnrecognisedGroup
from kernelcast.collector.ingest.repeated_steps import with_repeated_steps
from kernelcast.collector.ingest.samples import sample_of
from kernelcast.collector.ingest.scopes import marks_of, steps_of
from kernelcast.collector.ingest.stream_waits import recorded_waits, stream_waits
from kernelcast.collector.ingest.timeline import TraceEvents
from kernelcast.collector.traces.arguments import whole
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import DEVICE_CATEGORIES
from kernelcast.collector.traces.kineto import UNREAD, Trace, read_trace
from kernelcast.collector.traces.trace_text import MAX_TRACE_BYTES
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.small_file import open_regular
from kernelcast.runtime.workers import available_cores, each
from kernelcast.store import (
    Database,
    IngestedTrace,
    MeasuredRun,
    Run,
    Sample,
    Source,
    Timeline,
    UnrecognisedKernels,
)
from kernelcast.store.doubts import flagged
from kernelcast.store.runs import MatchedCollective

COMMAND = "ingest"
_PROFILER = "PyTorch profiler"
_IN_MEMORY_BYTES = 64 << 20  # of the traces of several ranks; larger ones are read by several processes
_USUAL_RATIO = 12  # of gzip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One ingested file and the records stored for it. Times in µs."""

    path: Path
    is_new: bool  # False: a trace with the same digest is in the database already
    trace: IngestedTrace | None = None
    samples: tuple[Sample, ...] = ()
    unrecognised: tuple[UnrecognisedKernels, ...] = ()
    device: str = ""
    notes: tuple[str, ...] = ()  # repairs and omissions


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file that was read; trace and samples have no run yet, events name samples by their position.

    `timeline` may be in a temporary file, so that memory holds one rank.
    """

    path: Path
    timeline: Timeline | Path
    compute: ComputeFingerprint
    software: SoftwareFingerprint
    gpus_per_node: int
    trace: IngestedTrace
    notes: tuple[str, ...]
    left: Mapping[UnrecognisedGroup, tuple[int, float]]
    collectives: RankCalls

    @property
    def job(self) -> tuple[object, ...]:
        """Fields that all ranks of one job share."""
        trace = self.trace
        return self.compute, self.software, trace.backend, trace.world_size, self.gpus_per_node

    @property
    def fabric(self) -> FabricFingerprint | None:
        """What its collectives ran on; None where that is not known."""
        if not self.gpus_per_node or not self.trace.backend:
            return None
        return FabricFingerprint(backend=self.trace.backend, gpus_per_node=self.gpus_per_node)

    def load(self) -> Timeline:
        """The timeline, from its file if it has one."""
        if isinstance(self.timeline, Timeline):
            return self.timeline
        with self.timeline.open("rb") as file:
            timeline: Timeline = pickle.load(file)
        return timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One file to read."""

    path: Path
    digest: str
    gpus_per_node: int
    max_bytes: int
    is_partial: bool
    folder: Path | None  # where to put the timeline; None: in memory


def ingest_traces(
    paths: Sequence[Path],
    database_path: Path,
    *,
    site: str = "",
    gpus_per_node: int = 0,
    max_bytes: int = MAX_TRACE_BYTES,
    is_partial: bool = False,
) -> list[Ingested]:
    """Add traces of real runs to a database, which is created if missing.

    Ranks of one job (same machine, software and world size, each rank once) become one run. Files whose digest is in
    the database are skipped. `gpus_per_node` is the number of ranks per node; 0 takes it from the traces. With
    `is_partial` a truncated file is read up to its end.

    Raises:
        UsageError: no file.
        DataError: names a file that is no Kineto trace or holds no kernel; the database is unchanged.
    """
    if not paths:
        raise UsageError("ingest: found no trace, expected at least one")
    known = _known(database_path)
    wanted: dict[Path, str] = {}
    for path in dict.fromkeys(paths):
        if (digest := _digest(path)) not in known:
            wanted[path] = digest
            known.add(digest)
    done = {path: Ingested(path=path, is_new=False) for path in paths}
    is_large = len(wanted) > 1 and sum(_unpacked_bytes(path) for path in wanted) > _IN_MEMORY_BYTES
    with TemporaryDirectory() as name, _without_search_for_cycles():
        folder = Path(name) if is_large else None
        tasks = [
            _Task(path=path, digest=digest, gpus_per_node=gpus_per_node, max_bytes=max_bytes,
                  is_partial=is_partial, folder=folder)
            for path, digest in wanted.items()
        ]  # fmt: skip
        files = dict(each(_read, tasks, jobs=available_cores() if is_large else 1))
        runs = [_traced_run(job, site) for job in _jobs([files[number] for number in range(len(tasks))])]
        if runs:
            with Database.open(database_path, create=True) as database:
                database.add_runs([measured for measured, _ in runs])
        for _, ingested in runs:
            done |= {one.path: one for one in ingested}
    return list(done.values())


def _unpacked_bytes(path: Path) -> int:
    """Roughly."""
    return path.stat().st_size * (_USUAL_RATIO if path.suffix == ".gz" else 1)


def _known(database_path: Path) -> set[str]:
    """Digests of the traces in the database."""
    if not database_path.exists():
        return set()
    with Database.open(database_path) as database:
        return {trace.file_digest for trace in database.records(IngestedTrace)}


def _digest(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


@contextmanager
def _without_search_for_cycles() -> Iterator[None]:
    """A trace's millions of objects have no cycles: searching them takes a fifth of the time."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@_without_search_for_cycles()
def _read(task: _Task) -> _File:
    """Read a file, perhaps in a process of its own."""
    path = task.path
    trace = read_trace(path, max_bytes=task.max_bytes, is_partial=task.is_partial)
    if not len(trace.events):
        raise DataError(f"{path}: holds no event with a duration, expected a trace of a run")
    span_us, event_count = _span_us(trace), len(trace.events)
    if not len(steps_of(trace)):
        trace = with_repeated_steps(trace)
    gpus_per_node = task.gpus_per_node or gpus_per_node_of(trace)
    backend, rank = trace.distributed.get("backend"), whole(trace.distributed.get("rank"))
    tree, compute = CallTree(trace), compute_of(trace)
    host, waits = tuple(host_times(trace, tree)), recorded_waits(trace, tree)
    # What is not needed any more is freed: the events of the host, then its calls, then occurrences one kind at a time.
    trace = replace(trace, events=marks_of(trace, *DEVICE_CATEGORIES))
    found = extract(trace, gpus_per_node, tree)
    del tree
    if not found.count:
        raise _no_kernel(path, trace)
    trace = replace(trace, events=marks_of(trace))
    events = TraceEvents(trace, found)
    start_ns, host_name = recorded_ns(trace), trace.host_name
    node = None if rank is None or not gpus_per_node else rank // gpus_per_node
    file = _File(
        path=path,
        timeline=Path(),
        compute=compute,
        software=software_of(trace),
        gpus_per_node=gpus_per_node,
        notes=trace.notes,
        left=found.left,
        collectives=RankCalls(start_ns=start_ns, host=host_name or node, calls=events.collectives(rank)),
        trace=IngestedTrace(
            run_id="",
            file_digest=task.digest,
            rank=rank,
            world_size=whole(trace.distributed.get("world_size")),
            backend=backend if isinstance(backend, str) else "",
            process_groups=process_groups(trace),
            span_us=span_us,
            event_count=event_count,
            kernel_count=found.count,
            kernel_us=found.total_us,
            **values_of(found, "attributed_count", "attributed_us", "recognised_count", "recognised_us"),
            measured_at=recorded_at(trace),
        ),
    )
    steps, stored, points, pieces = events.steps, events.stored(), found.points, found.pieces
    del events, found
    found_samples = [
        sample_of(kind, points.pop(kind), pieces, file.trace.measured_at) for kind in list(points)
    ]
    samples = flagged(found_samples, file.compute, file.fabric)
    timeline = Timeline("", steps, stored, waits=stream_waits(pieces, waits), host=host, samples=samples)
    if task.folder is None:
        return replace(file, timeline=timeline)
    with (spooled := task.folder / task.digest).open("wb") as out:
        pickle.dump(timeline, out, protocol=pickle.HIGHEST_PROTOCOL)
    return replace(file, timeline=spooled)


def _no_kernel(path: Path, trace: Trace) -> DataError:
    unread = "; ".join(note for note in trace.notes if UNREAD in note)
    found = f"{unread}; all others are of the host" if unread else "holds no kernel, only events of the host"
    return DataError(f"{path}: {found}; expected a trace of the device's kernels too")


def _span_us(trace: Trace) -> float:
    events = trace.events[~trace.events.are("Trace")]
    events = events if len(events) else trace.events
    return float(events.end_us.max() - events.start_us.min())


def _jobs(files: Sequence[_File]) -> list[list[_File]]:
    """Files grouped by job, each rank once."""
    jobs: list[list[_File]] = []
    for file in files:
        rank = file.trace.rank
        for job in jobs:
            is_new_rank = rank is not None and all(rank != other.trace.rank for other in job)
            if is_new_rank and (file.trace.world_size or 1) > 1 and file.job == job[0].job:
                job.append(file)
                break
        else:
            jobs.append([file])
    return jobs


def _run_of(job: Sequence[_File], site: str) -> Run:
    first = job[0]
    world_size, fabric = first.trace.world_size, first.fabric
    digests = sorted(file.trace.file_digest for file in job)
    return Run(
        started_at=min((file.trace.measured_at for file in job if file.trace.measured_at), default=None),
        command=COMMAND,
        compute_id=first.compute.digest,
        fabric_id=fabric.digest if fabric else None,
        software_id=first.software.digest,
        # No operator runs alone in a trace: `train` uses these samples only on request.
        conditions={"real_run": True, **({"world_size": world_size} if world_size else {})},
        source=Source(
            kind="trace",
            name=_PROFILER,
            file_digest=digests[0]
            if len(job) == 1
            else hashlib.sha256("".join(digests).encode()).hexdigest(),
        ),
        site=site,
    )


def _traced_run(job: Sequence[_File], site: str) -> tuple[MeasuredRun, list[Ingested]]:
    """The run of a job, and its files: that list is filled while the timelines are stored, which reads rank by rank."""
    first, run = job[0], _run_of(job, site)
    ingested: list[Ingested] = []
    traces = [replace(file.trace, run_id=run.id) for file in job]
    unrecognised = [_unrecognised(file, trace.id) for file, trace in zip(job, traces, strict=True)]

    def timelines() -> Iterator[Timeline]:
        clocks, numbers, lost = matched([file.collectives for file in job])
        for file, trace, left, clock, found, lacking in zip(
            job, traces, unrecognised, clocks, numbers, lost, strict=True
        ):
            timeline = file.load()
            samples = tuple(replace(sample, run_id=run.id) for sample in timeline.samples)
            collectives = tuple(_work(file.collectives.calls, found))
            yield replace(
                timeline,
                trace_id=trace.id,
                clock=clock,
                collectives=collectives,
                lost=lacking,
                samples=samples,
            )
            if isinstance(file.timeline, Path):  # repetitions of many ranks may not fit into memory
                samples = tuple(replace(sample, repetitions=()) for sample in samples)
            ingested.append(
                Ingested(
                    path=file.path,
                    is_new=True,
                    trace=trace,
                    samples=samples,
                    unrecognised=left,
                    device=file.compute.description,
                    notes=file.notes,
                )
            )

    measured = MeasuredRun(
        run=run,
        compute=first.compute,
        fabric=first.fabric,
        software=first.software,
        traces=tuple(zip(traces, unrecognised, strict=True)),
        timelines=timelines(),
    )
    return measured, ingested


def _work(calls: Sequence[CollectiveCall], numbers: Mapping[int, int]) -> Iterator[MatchedCollective]:
    """The matched collectives of a rank, with what it did since the one before."""
    before = (0, 0, 0)
    for call in sorted(calls):
        if call.sequence in numbers:
            since = (now - then for now, then in zip(call.done_ns, before, strict=True))
            yield MatchedCollective(call.sequence, numbers[call.sequence], *since)
            before = call.done_ns


def _unrecognised(file: _File, trace_id: str) -> tuple[UnrecognisedKernels, ...]:
    return tuple(
        UnrecognisedKernels(trace_id=trace_id, **left._asdict(), kernel_count=count, total_us=total_us)
        for left, (count, total_us) in file.left.items()
    )


def operator_counts(ingested: Sequence[Ingested]) -> Counter[tuple[str, str, str, str]]:
    """Occurrences by operator, role, direction and dtype."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for one in ingested:
        for sample in one.samples:
            key = sample.operator, sample.role, sample.direction.value, sample.dtype
            counts[key] += sample.repetition_count
    return counts
