"""A simulated step as a Chrome trace: JSON that ui.perfetto.dev and chrome://tracing open (docs/timeline.md).

Rows: in process "passes and update" one thread per stage; in process "transfers" one per stage and direction,
more where transfers of a stage are under way together; in process "gradients" one per stage.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.pipeline.pass_times import StageTimeline, StepTimeline
from kernelcast.runtime.pipeline.schedules import Kind
from kernelcast.runtime.views.simulated_step import (
    PassCollectives,
    Span,
    simulated_step,
    stage_spans,
    transfers,
)

Event = dict[str, Any]


_STAGES, _TRANSFERS, _GRADIENTS = 1, 2, 3
_PROCESSES = {_STAGES: "passes and update", _TRANSFERS: "transfers", _GRADIENTS: "gradients"}
"""Process ids of the trace, in the order in which viewers show them."""


def write_chrome_trace(estimate: Estimate, path: Path) -> None:
    """Write the trace of an estimate's step to `path`; the same estimate gives the same bytes. UsageError where the
    step has too many passes to list them; DataError where the file cannot be written.
    """
    write_pieces(path, trace_lines(estimate))


def trace_lines(estimate: Estimate) -> Iterator[str]:
    """The trace as lines of text, one event per line, made while they are read."""
    timeline = simulated_step(estimate)
    layout = estimate.parallelism
    head = {
        "displayTimeUnit": "ms",
        "otherData": {
            "model": estimate.model.name,
            "layout": layout.degrees,
            **values_of(layout, "schedule", "micro_batches", "virtual_stages"),
            "simulated_step_us": timeline.step_us,
            **values_of(estimate.provenance, "bundle_digest", "kernelcast_version"),
        },
    }
    yield json.dumps(head)[:-1] + ', "traceEvents": ['
    separator = "\n"
    for event in trace_events(estimate, timeline):
        yield separator + json.dumps(event, separators=(",", ":"))
        separator = ",\n"
    yield "\n]}\n"


def trace_events(estimate: Estimate, timeline: StepTimeline) -> Iterator[Event]:
    """Events in the trace event format: "M" names processes and threads, "X" are slices with ts and dur in µs."""
    for process, name in _PROCESSES.items():
        yield from _named("process", process, 0, name, process)
    collectives = PassCollectives.of(estimate)
    for stage in timeline.stages:
        number = stage.stage
        yield from _named("thread", _STAGES, number, f"stage {number}", number)
        has_chunks = len({one.chunk for one in stage.passes}) > 1
        for span in stage_spans(stage, estimate, collectives):
            if span.style != "reduce":
                yield from _slices(number, span, has_chunks=has_chunks)
    for stage in timeline.stages:
        yield from _transfers(stage, timeline)
    for stage in timeline.stages:
        if stage.all_reduces:
            yield from _named(
                "thread", _GRADIENTS, stage.stage, f"stage {stage.stage} all-reduce", stage.stage
            )
        for reduce in stage.all_reduces:
            yield _slice(_GRADIENTS, stage.stage, "all-reduce", reduce.start_us, reduce.end_us, {})


def _slices(stage: int, span: Span, *, has_chunks: bool) -> Iterator[Event]:
    """A slice per span; only passes may be empty. Viewers draw slices inside a pass below it."""
    if span.micro_batch is not None:
        name = f"{span.name} {span.micro_batch}" + (f" (chunk {span.chunk})" if has_chunks else "")
        arguments = {"micro_batch": span.micro_batch, "chunk": span.chunk}
        yield _slice(_STAGES, stage, name, span.start_us, span.end_us, arguments)
    elif _nanoseconds(span.end_us) > _nanoseconds(span.start_us):
        yield _slice(_STAGES, stage, span.name, span.start_us, span.end_us, {})


def _transfers(stage: StageTimeline, timeline: StepTimeline) -> Iterator[Event]:
    pp = len(timeline.stages)
    for turn, kind in enumerate((Kind.FORWARD, Kind.BACKWARD)):
        free_ns: list[int] = []  # when each row of this stage and direction has room for the next transfer
        for one in transfers(stage, timeline, kind):
            start_ns = _nanoseconds(one.start_us)
            row = next((row for row, end_ns in enumerate(free_ns) if end_ns <= start_ns), len(free_ns))
            # Rows of a stage and direction lie together: the rare further ones come after all first ones.
            thread = row * 2 * pp + 2 * stage.stage + turn
            if row == len(free_ns):
                free_ns.append(0)
                more = f" ({row + 1})" if row else ""
                name = f"stage {stage.stage} sends {kind}{more}"
                yield from _named("thread", _TRANSFERS, thread, name, thread)
            free_ns[row] = _nanoseconds(one.end_us)
            name = f"send {kind} {one.micro_batch}"
            arguments = {"micro_batch": one.micro_batch, "chunk": one.chunk, "to_stage": one.to_stage}
            yield _slice(_TRANSFERS, thread, name, one.start_us, one.end_us, arguments)


def _slice(process: int, thread: int, name: str, start_us: float, end_us: float, arguments: Event) -> Event:
    # Both ends are rounded, not the duration: slices that touch in time touch in the file.
    start_ns, end_ns = _nanoseconds(start_us), _nanoseconds(end_us)
    event: Event = {
        "ph": "X",
        "name": name,
        "cat": name.split(" ")[0],
        "pid": process,
        "tid": thread,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
    }
    return event | {"args": arguments} if arguments else event


def _nanoseconds(time_us: float) -> int:
    return round(time_us * 1000)


def _named(what: str, process: int, thread: int, name: str, index: int) -> Iterator[Event]:
    """The name of a process or thread, and its place among the others."""
    for key, value in (("name", name), ("sort_index", index)):
        yield {"ph": "M", "name": f"{what}_{key}", "pid": process, "tid": thread, "args": {key: value}}
