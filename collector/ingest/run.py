"""`ingest_traces`: stores trace files of real runs in a database, all of them or none."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.collector.ingest.attribute_kernels import Extracted, Occurrence, SampleKey, extract
from kernelcast.collector.ingest.machine import (
    compute_of,
    gpus_per_node_of,
    process_groups,
    recorded_at,
    software_of,
)
from kernelcast.collector.ingest.scopes import marks_of
from kernelcast.collector.ingest.timeline import TraceEvents
from kernelcast.collector.traces.arguments import whole
from kernelcast.collector.traces.kineto import Trace, read_trace
from kernelcast.collector.traces.trace_text import MAX_TRACE_BYTES
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.small_file import open_regular
from kernelcast.store import (
    Database,
    IngestedTrace,
    Kernel,
    MeasuredRun,
    Repetition,
    Run,
    Sample,
    Source,
    Timeline,
    UnrecognisedKernels,
)
from kernelcast.store.doubts import flagged

COMMAND = "ingest"
_PROFILER = "PyTorch profiler"
_IDLE_PERCENT = 10
_HASHED_BYTES = 1 << 20


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
    timeline: Timeline | None = None  # None: nothing ran


@dataclass(frozen=True, slots=True)
class _File:
    """One file that was read; `trace` has no run yet."""

    path: Path
    content: Trace  # only its first event and its marks
    extracted: Extracted
    compute: ComputeFingerprint
    software: SoftwareFingerprint
    gpus_per_node: int
    trace: IngestedTrace
    notes: tuple[str, ...]

    @property
    def job(self) -> tuple[object, ...]:
        """Fields that all ranks of one job share."""
        trace = self.trace
        return self.compute, self.software, trace.backend, trace.world_size, self.gpus_per_node


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
    files: list[_File | Path] = []
    for path in paths:
        digest = _digest(path)
        files.append(path if digest in known else _read(path, digest, gpus_per_node, max_bytes, is_partial))
        known.add(digest)
    done = {path: Ingested(path=path, is_new=False) for path in files if isinstance(path, Path)}
    runs = []
    for job in _jobs([file for file in files if isinstance(file, _File)]):
        run, ingested = _traced_run(job, site)
        runs.append(run)
        done |= {one.path: one for one in ingested}
    if runs:
        with Database.open(database_path, create=True) as database:
            database.add_runs(runs)
    return [done[path] for path in dict.fromkeys(paths)]


def _known(database_path: Path) -> set[str]:
    """Digests of the traces in the database."""
    if not database_path.exists():
        return set()
    with Database.open(database_path) as database:
        return {trace.file_digest for trace in database.records(IngestedTrace)}


def _digest(path: Path) -> str:
    try:
        with open_regular(path) as file:
            digest = hashlib.sha256()
            while chunk := file.read(_HASHED_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()


def _read(path: Path, digest: str, gpus_per_node: int, max_bytes: int, is_partial: bool) -> _File:
    trace = read_trace(path, max_bytes=max_bytes, is_partial=is_partial)
    if not trace.events:
        raise DataError(f"{path}: holds no event with a duration, expected a trace of a run")
    gpus_per_node = gpus_per_node or gpus_per_node_of(trace)
    backend = trace.distributed.get("backend")
    found = extract(trace, gpus_per_node)
    if not found.count:
        raise DataError(
            f"{path}: holds no kernel, only events of the host; expected a trace of the device's kernels too"
        )
    return _File(
        path=path,
        content=replace(trace, events=marks_of(trace)),
        extracted=found,
        compute=compute_of(trace),
        software=software_of(trace),
        gpus_per_node=gpus_per_node,
        notes=trace.notes,
        trace=IngestedTrace(
            run_id="",
            file_digest=digest,
            rank=whole(trace.distributed.get("rank")),
            world_size=whole(trace.distributed.get("world_size")),
            backend=backend if isinstance(backend, str) else "",
            process_groups=process_groups(trace),
            span_us=_span_us(trace),
            event_count=len(trace.events),
            kernel_count=found.count,
            kernel_us=found.total_us,
            attributed_count=found.attributed_count,
            attributed_us=found.attributed_us,
            recognised_count=found.recognised_count,
            recognised_us=found.recognised_us,
            measured_at=recorded_at(trace),
        ),
    )


def _span_us(trace: Trace) -> float:
    events = [event for event in trace.events if event.category != "Trace"] or list(trace.events)
    return max(event.end_us for event in events) - min(event.start_us for event in events)


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


def _traced_run(job: Sequence[_File], site: str) -> tuple[MeasuredRun, list[Ingested]]:
    first = job[0]
    backend, world_size = first.trace.backend, first.trace.world_size
    digests = sorted(file.trace.file_digest for file in job)
    fabric = None
    if first.gpus_per_node and backend:
        fabric = FabricFingerprint(backend=backend, gpus_per_node=first.gpus_per_node)
    run = Run(
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
    ingested = [_ingested(file, run.id, fabric) for file in job]
    traced = MeasuredRun(
        run=run,
        compute=first.compute,
        fabric=fabric,
        software=first.software,
        samples=tuple(sample for one in ingested for sample in one.samples),
        traces=tuple((one.trace, one.unrecognised) for one in ingested if one.trace),
        timelines=tuple(one.timeline for one in ingested if one.timeline),
    )
    return traced, ingested


def _ingested(file: _File, run_id: str, fabric: FabricFingerprint | None) -> Ingested:
    trace = replace(file.trace, run_id=run_id)
    trace_id = trace.id
    unrecognised = tuple(
        UnrecognisedKernels(trace_id=trace_id, **left._asdict(), kernel_count=count, total_us=total_us)
        for left, (count, total_us) in file.extracted.left.items()
    )
    kinds = list(file.extracted.points)
    samples = flagged(
        [_sample(kind, file.extracted.points[kind], run_id, trace.measured_at) for kind in kinds],
        file.compute,
        fabric,
    )
    events = TraceEvents(
        file.content, file.extracted, {kind: one.id for kind, one in zip(kinds, samples, strict=True)}
    )
    return Ingested(
        path=file.path,
        is_new=True,
        trace=trace,
        samples=samples,
        unrecognised=unrecognised,
        device=file.compute.description,
        notes=file.notes,
        timeline=Timeline(trace_id, events.steps, events) if trace.kernel_count else None,
    )


def _sample(
    kind: SampleKey, occurrences: Sequence[Occurrence], run_id: str, measured_at: str | None
) -> Sample:
    point, direction = kind
    first_us = occurrences[0].start_us
    repetitions = [_repetition(index, occurrence, first_us) for index, occurrence in enumerate(occurrences)]
    return Sample.from_repetitions(
        run_id=run_id,
        operator=point.operator,
        role=point.role,
        direction=direction,
        dtype=point.dtype,
        vector=point.vector,
        variant=point.variant,
        repetitions=repetitions,
        measured_at=measured_at,
        flags=_flags(occurrences),
    )


def _repetition(index: int, occurrence: Occurrence, first_us: float) -> Repetition:
    start_us = occurrence.start_us
    return Repetition(
        index=index,
        time_us=occurrence.end_us - start_us,
        start_us=start_us - first_us,
        kernels=tuple(
            Kernel(
                name=piece.name,
                start_us=piece.start_us - start_us,
                duration_us=piece.duration_us,
                stream=piece.stream,
            )
            for piece in occurrence.pieces
        ),
    )


def _flags(occurrences: Sequence[Occurrence]) -> list[tuple[str, str]]:
    """Flags of times that differ from an operator measured alone."""
    flags = []
    overlapped = sum(occurrence.is_overlapped for occurrence in occurrences)
    if overlapped:
        flags.append(
            ("overlapped", f"{overlapped} of {len(occurrences)} overlapped with kernels of other streams")
        )
    spans_us = sum(occurrence.end_us - occurrence.start_us for occurrence in occurrences)
    busy_us = sum(piece.duration_us for occurrence in occurrences for piece in occurrence.pieces)
    idle_percent = 100 * (1 - busy_us / spans_us)
    if idle_percent >= _IDLE_PERCENT:
        flags.append(("idle", f"{idle_percent:.0f} % of the time none of its kernels ran"))
    return flags


def operator_counts(ingested: Sequence[Ingested]) -> Counter[tuple[str, str, str, str]]:
    """Occurrences by operator, role, direction and dtype."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for one in ingested:
        for sample in one.samples:
            key = sample.operator, sample.role, sample.direction.value, sample.dtype
            counts[key] += sample.repetition_count
    return counts
