"""A simulated step as a Chrome trace: JSON that ui.perfetto.dev and chrome://tracing open (docs/timeline.md).

Rows: in process "passes and update" one thread per stage; in process "transfers" one per stage and direction,
more where transfers of a stage are under way together; in process "gradients" one per stage.
"""

import json
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.pipeline import Kind, StageTimeline, StepTimeline
from kernelcast.runtime.views.inside_passes import NAMES, InsidePasses
from kernelcast.runtime.views.simulated_step import simulated_step, transfers, update_parts

Event = dict[str, Any]


class _Process(IntEnum):
    """Process ids of the trace, in the order in which viewers show them."""

    STAGES = 1
    TRANSFERS = 2
    GRADIENTS = 3


_PROCESS_NAMES = {
    _Process.STAGES: "passes and update",
    _Process.TRANSFERS: "transfers",
    _Process.GRADIENTS: "gradients",
}


def write_chrome_trace(estimate: Estimate, path: Path) -> None:
    """Write the trace of an estimate's step to `path`; the same estimate gives the same bytes.

    Raises:
        UsageError: the step has too many passes to list them.
        DataError: the file cannot be written.
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
            "schedule": layout.schedule,
            "micro_batches": layout.micro_batches,
            "virtual_stages": layout.virtual_stages,
            "simulated_step_us": timeline.step_us,
            "bundle_digest": estimate.provenance.bundle_digest,
            "kernelcast_version": estimate.provenance.kernelcast_version,
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
    for process, name in _PROCESS_NAMES.items():
        yield _name("process_name", process, 0, name)
        yield _sort_index("process_sort_index", process, 0, process.value)
    inside = InsidePasses.of(estimate)
    for stage in timeline.stages:
        yield _name("thread_name", _Process.STAGES, stage.stage, f"stage {stage.stage}")
        yield _sort_index("thread_sort_index", _Process.STAGES, stage.stage, stage.stage)
        yield from _passes(stage, inside)
        for name, start_us, end_us in update_parts(stage, estimate):
            if _nanoseconds(end_us) > _nanoseconds(start_us):
                yield _slice(_Process.STAGES, stage.stage, name, start_us, end_us, {})
    for stage in timeline.stages:
        yield from _transfers(stage, timeline)
    for stage in timeline.stages:
        if stage.all_reduces:
            yield _name("thread_name", _Process.GRADIENTS, stage.stage, f"stage {stage.stage} all-reduce")
            yield _sort_index("thread_sort_index", _Process.GRADIENTS, stage.stage, stage.stage)
        for span in stage.all_reduces:
            yield _slice(_Process.GRADIENTS, stage.stage, "all-reduce", span.start_us, span.end_us, {})


def _passes(stage: StageTimeline, inside: InsidePasses) -> Iterator[Event]:
    several = len({one.chunk for one in stage.passes}) > 1
    for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True):
        name = f"{one.kind.value} {one.micro_batch}"
        if several:
            name += f" (chunk {one.chunk})"
        arguments = {"micro_batch": one.micro_batch, "chunk": one.chunk}
        yield _slice(_Process.STAGES, stage.stage, name, start_us, end_us, arguments)
        # Slices inside the pass's: viewers draw them below it.
        for style, first_us, last_us in inside.parts(stage.stage, one.kind, start_us, end_us):
            if _nanoseconds(last_us) > _nanoseconds(first_us):
                yield _slice(_Process.STAGES, stage.stage, NAMES[style], first_us, last_us, {})


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
                yield _name(
                    "thread_name", _Process.TRANSFERS, thread, f"stage {stage.stage} sends {kind}{more}"
                )
                yield _sort_index("thread_sort_index", _Process.TRANSFERS, thread, thread)
            free_ns[row] = _nanoseconds(one.end_us)
            name = f"send {kind} {one.micro_batch}"
            arguments = {"micro_batch": one.micro_batch, "chunk": one.chunk, "to_stage": one.to_stage}
            yield _slice(_Process.TRANSFERS, thread, name, one.start_us, one.end_us, arguments)


def _slice(
    process: _Process, thread: int, name: str, start_us: float, end_us: float, arguments: Event
) -> Event:
    # Both ends are rounded, not the duration: slices that touch in time touch in the file.
    start_ns, end_ns = _nanoseconds(start_us), _nanoseconds(end_us)
    event: Event = {
        "ph": "X",
        "name": name,
        "cat": name.split(" ")[0],
        "pid": process.value,
        "tid": thread,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
    }
    return event | {"args": arguments} if arguments else event


def _nanoseconds(time_us: float) -> int:
    return round(time_us * 1000)


def _name(what: str, process: _Process, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process.value, "tid": thread, "args": {"name": name}}


def _sort_index(what: str, process: _Process, thread: int, index: int) -> Event:
    return {"ph": "M", "name": what, "pid": process.value, "tid": thread, "args": {"sort_index": index}}
