"""Memory of one device of every stage as SVG: at its fullest moment as bars, and over a simulated step."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.memory.over_step import StageMemoryOverStep, memory_over_step
from kernelcast.runtime.memory.stages import StageMemory
from kernelcast.runtime.pipeline.pass_times import StageTimeline, StepTimeline
from kernelcast.runtime.views.formatting import gibibytes, sizes_text
from kernelcast.runtime.views.page import Markup, drawn_stages, element, number, picture, raw
from kernelcast.runtime.views.timeline_picture import Window, cut_marks, drawn_windows, time_axis

LEGEND = (
    ("states", "weights, gradients, optimizer states, workspaces"),
    ("activations", "activations and logits that wait for their backward pass"),
    ("working", "working memory of a backward pass"),
    ("idle", "free"),
)
"""Class of a colour, and its meaning."""
_LEFT, _WIDTH, _TOP, _TALLER, _MOST_ROWS = 74.0, 1200.0, 30.0, 1.6, 16


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a stage is drawn: bytes go up from `bottom`."""

    bottom: float
    height: float
    scale: float  # per byte

    def y(self, size_bytes: float) -> float:
        return self.bottom - size_bytes * self.scale


def memory_over_step_picture(
    estimate: Estimate, timeline: StepTimeline
) -> tuple[Markup, list[dict[str, Any]]]:
    """A drawing, a row per stage (first and last 8 of more than 16), and its peaks as rows of a table."""
    memory, windows = estimate.memory, drawn_windows(estimate, timeline)
    stages, height = drawn_stages(timeline.stages, _MOST_ROWS)
    height *= _TALLER
    orders = [stage.passes for stage in timeline.stages]
    found = memory_over_step(estimate.model, estimate.parallelism, orders, **memory.options)
    inner = height - 6.0
    scale = inner / max(memory.largest_bytes, memory.usable_bytes or 0, 1)
    peaks = [_peak(stage, over) for stage, over in zip(timeline.stages, found, strict=True)]
    rows = [
        _drawn(stage, found[stage.stage], windows, _Row(_TOP + row * height + inner, inner, scale), estimate)
        for row, stage in enumerate(stages)
    ]
    bottom = _TOP + len(stages) * height
    description = (
        f"One row per stage ({len(stages)} of {len(timeline.stages)}), time from left to right as in the timeline; "
        "memory of one device from the bottom of each row up. The peaks of all stages are in the table below."
    )
    shapes = (*time_axis(windows, bottom), *rows, *cut_marks(windows, bottom))
    title, size = "Memory of one device over the step", {"width": _WIDTH, "height": bottom + 26}
    return picture("memory-over-step", title, description, *shapes, **size), peaks


def _peak(stage: StageTimeline, over: StageMemoryOverStep) -> dict[str, Any]:
    one = stage.passes[over.peak_pass]
    return {
        "stage": stage.stage,
        "peak_memory_bytes": over.peak_bytes,
        "pass": one.kind.value,
        "micro-batch": one.micro_batch,
        "chunk": one.chunk,
        "start_time_s": stage.starts_us[over.peak_pass] * 1e-6,
    }


def _drawn(
    stage: StageTimeline, over: StageMemoryOverStep, windows: list[Window], row: _Row, estimate: Estimate
) -> Markup:
    name = f"stage {stage.stage}"
    shapes = [element("text", name, x=_LEFT - 8, y=row.bottom - row.height / 2 + 4, class_="label")]
    usable = estimate.memory.usable_bytes
    for window in windows:
        width = window.x(window.end_us) - window.left
        if usable is not None:
            top = row.y(usable)
            shapes.append(
                element("rect", x=window.left, y=top, width=width, height=row.bottom - top, class_="idle")
            )
        for style, has_working in (("working", True), ("activations", False)):
            path = _area(stage, over, window, row, has_working=has_working)
            shapes.append(element("path", d=path, class_=style))
        top = row.y(over.states_bytes)
        shapes.append(
            element("rect", x=window.left, y=top, width=width, height=row.bottom - top, class_="states")
        )
        if usable is not None and usable < estimate.memory.largest_bytes:
            y = row.y(usable)
            shapes.append(element("line", x1=window.left, x2=window.left + width, y1=y, y2=y, class_="limit"))
    return element("g", *shapes, *_mark(stage, over, windows, row))


def _area(
    stage: StageTimeline, over: StageMemoryOverStep, window: Window, row: _Row, *, has_working: bool
) -> Markup:
    """The area under a stage's memory in a window, as a path."""
    first = bisect_left(stage.starts_us, window.start_us)
    last = bisect_right(stage.ends_us, window.end_us)
    bottom, right = number(row.bottom), window.x(window.end_us)
    levels = row.y(over.states_bytes) - row.scale * over.kept_bytes[first : last + 1]
    moves = [f"M{number(window.left)} {bottom}V{levels[0]:.1f}"]
    for start_us, end_us, before, after, working in zip(
        stage.starts_us[first:last],
        stage.ends_us[first:last],
        levels.tolist(),
        levels[1:].tolist(),
        (row.scale * has_working * over.working_bytes[first:last]).tolist(),
        strict=False,
    ):
        # What is kept grows and shrinks evenly in a pass.
        start, end = window.x(start_us), window.x(end_us)
        corners = [(start, before), (end, after)]
        if working:
            corners[1:1] = [(start, before - working), (end, after - working)]
        moves += [f"L{x:.1f} {y:.1f}" for x, y in corners]
    path = (move for move, previous in zip(moves, ["", *moves], strict=False) if move != previous)
    return raw("".join([*path, f"H{number(right)}V{bottom}z"]))


def _mark(
    stage: StageTimeline, over: StageMemoryOverStep, windows: list[Window], row: _Row
) -> Iterator[Markup]:
    """A dot at the peak, and its bytes and pass; between the windows where the peak is left out."""
    peak = _peak(stage, over)
    at_us = stage.starts_us[over.peak_pass]
    places = [window.x(at_us) for window in windows if window.start_us <= at_us <= window.end_us]
    x = places[0] if places else windows[-1].left
    chunk = f" of chunk {peak['chunk']}" if len({one.chunk for one in stage.passes}) > 1 else ""
    text = f"{gibibytes(over.peak_bytes)}, {peak['pass']} pass{chunk} of micro-batch {peak['micro-batch']}"
    title = element("title", f"stage {stage.stage}: at most {text}")
    y = row.y(over.peak_bytes)
    yield element("circle", title, cx=x, cy=y, r=3, class_="peak")
    is_left = x < _WIDTH / 2
    beside = {"x": x + (7 if is_left else -7), "text_anchor": "start" if is_left else "end"}
    has_room = y - 16 > row.bottom - row.height
    yield element("text", text, **beside, y=y + (-4 if has_room else 11), class_="total")


PARTS = (
    ("weights_bytes", "weights", "weights"),
    ("gradients_bytes", "gradients", "gradients"),
    ("optimizer_bytes", "optimizer states", "states"),
    ("activations_bytes", "activations", "activations"),
    ("logits_bytes", "logits", "logits"),
    ("working_bytes", "working memory", "working"),
    ("workspace_bytes", "workspaces", "working"),
)
"""Field of `StageMemory`, name, class of its colour."""

_BARS_WIDTH, _BARS_LEFT, _BARS_RIGHT, _BARS_TOP = 1200.0, 74.0, 1040.0, 22.0


def memory_picture(memory: Memory) -> Markup:
    """One bar per stage; with more than 96 stages, the first and the last 48."""
    stages, height = drawn_stages(memory.stages)
    bottom = _BARS_TOP + len(stages) * height
    capacity = memory.usable_bytes
    scale = (_BARS_RIGHT - _BARS_LEFT) / max(memory.largest_bytes, capacity or 0, 1)
    rows = [_bar(stage, _BARS_TOP + row * height, height, scale, memory) for row, stage in enumerate(stages)]
    limit: list[Markup] = []
    if capacity is not None:
        x = _BARS_LEFT + capacity * scale
        whole = gibibytes(memory.gpu_memory_bytes or 0)
        less = f" less {taken}" if (taken := sizes_text(memory.taken_bytes)) else ""
        line = element("line", x1=x, x2=x, y1=_BARS_TOP - 4, y2=bottom, class_="limit")
        limit = [line, element("text", f"device: {whole}{less}", x=x, y=_BARS_TOP - 9, class_="limit-label")]
    description = (
        "One bar per stage: weights, gradients, optimizer states, activations, logits and working memory of one "
        "device. The same figures are in the table below."
    )
    title, size = "Memory per device of every stage", {"width": _BARS_WIDTH, "height": bottom + 6}
    return picture("memory", title, description, *limit, *rows, **size)


def _bar(stage: StageMemory, y: float, height: float, scale: float, memory: Memory) -> Markup:
    inner = height - (6.0 if height > 16 else 2.0)
    middle = y + inner / 2 + 4
    fits = memory.fits_stage(stage)
    total = gibibytes(stage.total_bytes) + (" does not fit" if fits is False else "")
    shapes = [element("text", f"stage {stage.stage}", x=_BARS_LEFT - 8, y=middle, class_="label")]
    x = _BARS_LEFT
    for field, name, style in PARTS:
        size = getattr(stage, field)
        if size:
            title = element("title", f"stage {stage.stage}: {name}, {gibibytes(size)}")
            width = size * scale
            shapes.append(element("rect", title, x=x, y=y, width=width, height=inner, class_=style))
            x += width
    style = "over" if fits is False else "total"
    shapes.append(element("text", total, x=x + 6, y=middle, class_=style))
    return element("g", *shapes)
