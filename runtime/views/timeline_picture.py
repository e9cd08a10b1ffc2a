"""A simulated step as SVG: one row per stage, time from left to right."""

import math
from collections.abc import Iterable, Iterator

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.pipeline.pass_times import StageTimeline, StepTimeline
from kernelcast.runtime.pipeline.schedules import Kind
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, chunks_on
from kernelcast.runtime.views.formatting import counted, round_step, seconds
from kernelcast.runtime.views.page import (
    Markup,
    drawn_stages,
    element,
    number,
    picture,
    raw,
    rectangles,
)
from kernelcast.runtime.views.simulated_step import PassCollectives, Span, stage_spans, transfers
from kernelcast.runtime.views.step_breakdown import NAMES

_WIDTH, _LEFT, _RIGHT, _TOP = 1200.0, 74.0, 1188.0, 30.0
_GAP = 44.0
_DETAILED_PASSES = 2600
"""More passes than this are one shape per stage and kind; up to here each is a shape with a title."""

_PASSES_PER_ROW = 260
"""With more passes per stage only the beginning and the end of the step are drawn, with some pixels per pass."""

_MICRO_BATCHES_SHOWN = 16
"""Micro-batches shown at either end of a cut step, in addition to one per stage."""

_SHAPES = {  # style: first and last fraction of the row's height, from the lowest layer of the drawing to the top
    "forward": (0.0, 0.82),
    "backward": (0.0, 1.0),
    "weight": (0.28, 1.0),
    "expert": (0.0, 0.24),
    "context": (0.0, 0.24),
    "reduce": (0.66, 1.0),
    "optimizer": (0.0, 1.0),
    "gather": (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time and where on the page it is drawn."""

    start_us: float
    end_us: float
    left: float
    scale: float  # per µs

    def x(self, time_us: float) -> float:
        return self.left + (time_us - self.start_us) * self.scale


def timeline_picture(estimate: Estimate, timeline: StepTimeline) -> tuple[Markup, list[str]]:
    """Draw a step, long ones cut in the middle, at most 96 stages, with notes on what is left out."""
    windows = drawn_windows(estimate, timeline)
    stages, height = drawn_stages(timeline.stages)
    notes = []
    if len(stages) < len(timeline.stages):
        first, last = len(stages) // 2, len(timeline.stages) - len(stages) // 2 - 1
        notes.append(f"stages {first} to {last} of {len(timeline.stages)} are not drawn")
    if len(windows) > 1:
        hidden_us = windows[1].start_us - windows[0].end_us
        notes.append(f"{seconds(hidden_us * 1e-6)} in the middle, where the pattern repeats, are not drawn")
    bottom = _TOP + len(stages) * height
    drawn = sum(len(stage.passes) for stage in stages)
    detailed = drawn <= _DETAILED_PASSES and len(windows) == 1
    if not detailed:
        notes.append("too many passes to label each: hover over a row for the times of its passes")
    rows, collectives = [], PassCollectives.of(estimate)
    for row, stage in enumerate(stages):
        spans = stage_spans(stage, estimate, collectives)
        rows.append(_row(stage, spans, _TOP + row * height, height, windows, detailed=detailed))
    where = {stage.stage: _TOP + row * height for row, stage in enumerate(stages)}
    links = _transfers(stages, where, height, windows[0], timeline) if detailed else raw("")
    description = (
        f"One row per stage ({counted(len(timeline.stages), 'stage')}), time from left to right, "
        f"{seconds(timeline.step_us * 1e-6)} in all. The same figures are in the tables below."
    )
    shapes = (*time_axis(windows, bottom), *rows, links, *cut_marks(windows, bottom))
    title, size = "Timeline of one simulated training step", {"width": _WIDTH, "height": bottom + 26}
    svg = picture("timeline", title, description, *shapes, **size)
    return svg, notes


def drawn_windows(estimate: Estimate, timeline: StepTimeline) -> list[Window]:
    """The whole step, or its beginning and its end where it has too many passes."""
    step_us, room = max(timeline.step_us, 1e-9), _RIGHT - _LEFT
    whole = [Window(0.0, step_us, _LEFT, room / step_us)]
    if max(len(stage.passes) for stage in timeline.stages) <= _PASSES_PER_ROW:
        return whole
    times = estimate.durations
    per_chunk = (times.forward_us + times.backward_us + times.weight_us)[0]
    layout = estimate.parallelism
    unit_us = max(
        float(per_chunk[list(chunks)].sum()) / layout.copies
        for chunks in chunks_on(layout.schedule, layout.pp, layout.virtual_stages)
    )
    shown_us = (len(timeline.stages) + _MICRO_BATCHES_SHOWN) * unit_us
    last_us = max(stage.ends_us[-1] for stage in timeline.stages) - shown_us
    if shown_us > 0.9 * last_us:
        return whole
    scale = (room - _GAP) / (shown_us + step_us - last_us)
    middle = _LEFT + shown_us * scale + _GAP
    return [Window(0.0, shown_us, _LEFT, scale), Window(last_us, step_us, middle, scale)]


def _row(
    stage: StageTimeline,
    spans: Iterable[Span],
    y: float,
    height: float,
    windows: list[Window],
    *,
    detailed: bool,
) -> Markup:
    """A stage: passes and their collectives as one shape per style, unless `detailed`; the rest one by one."""
    inner = height - (4.0 if height > 16 else 2.0)
    name = f"stage {stage.stage}"
    has_chunks = len({one.chunk for one in stage.passes}) > 1
    shapes = [element("text", name, x=_LEFT - 8, y=y + inner / 2 + 4, class_="label")]
    for window in windows:
        width = (window.end_us - window.start_us) * window.scale
        shapes.append(element("rect", x=window.left, y=y, width=width, height=inner, class_="idle"))
    by_style: dict[str, list[Span]] = {style: [] for style in _SHAPES}
    for span in spans:
        if span.end_us > span.start_us:
            by_style[span.style].append(span)
    for style, group in by_style.items():
        low, high = _SHAPES[style]
        top, thick = y + low * inner, (high - low) * inner
        if style in NAMES or (group and group[0].micro_batch is not None and not detailed):
            shapes += _together(name, style, group, top, thick, windows)
        else:
            for span in group:
                shapes += _alone(name, span, top, thick, windows, has_chunks=has_chunks)
    return element("g", *shapes)


def _together(
    where: str, style: str, spans: list[Span], y: float, height: float, windows: list[Window]
) -> Iterator[Markup]:
    """Spans of a style as one path."""
    if not spans:
        return
    lengths_us = [span.end_us - span.start_us for span in spans]
    low, high = seconds(min(lengths_us) * 1e-6), seconds(max(lengths_us) * 1e-6)
    each, total = low if low == high else f"{low} to {high}", seconds(sum(lengths_us) * 1e-6)
    if style in NAMES:
        title = f"{where}: {NAMES[style]} inside passes, {each} of each, {total} in all"
    else:
        title = f"{where}: {len(spans):,} {style} passes of {each} each, {total} in all"
    places = (place for span in spans for place in _places(span, windows))
    yield rectangles(places, y, height, style, title)


def _alone(
    where: str, span: Span, y: float, height: float, windows: list[Window], *, has_chunks: bool
) -> Iterator[Markup]:
    """A span as a shape of its own; a pass with its letter and micro-batch, where they fit."""
    duration = seconds((span.end_us - span.start_us) * 1e-6)
    title, label = f"{where}: {span.name}, {duration}", ""
    if span.style == "reduce":
        title = f"{where}: all-reduce of gradients, {duration}"
    elif span.micro_batch is not None:
        chunk = f", chunk {span.chunk}" if has_chunks else ""
        title = (
            f"{where}{chunk}: {span.name} pass of micro-batch {span.micro_batch}, {duration}, "
            f"from {seconds(span.start_us * 1e-6)}"
        )
        label = f"{span.name[0].upper()}{span.micro_batch}"
    for left, width in _places(span, windows):
        # A thin gap between neighbouring passes, where they are wide enough.
        drawn = width - (0.6 if label and width > 4 else 0.0)
        box = {"x": left, "y": y, "width": drawn, "height": height}
        yield element("rect", element("title", title), **box, class_=span.style)
        if label and height > 12 and width > 6.3 * len(label) + 1.5:
            middle = y + height / 2 + 3.5
            yield element("text", label, x=left + drawn / 2, y=middle, class_=f"in-{span.style}")


def _places(span: Span, windows: list[Window]) -> Iterator[tuple[float, float]]:
    """(left, width) of the parts of a span that lie in a window."""
    for window in windows:
        first, last = max(span.start_us, window.start_us), min(span.end_us, window.end_us)
        if last > first:
            yield window.x(first), (last - first) * window.scale


def _transfers(
    stages: Iterable[StageTimeline],
    where: dict[int, float],
    height: float,
    window: Window,
    timeline: StepTimeline,
) -> Markup:
    """A line from the end of every pass to the arrival of its output."""
    middle = (height - 4) / 2
    moves = [
        f"M{number(window.x(sent.start_us))} {number(where[stage.stage] + middle)}"
        f"L{number(window.x(sent.end_us))} {number(where[sent.to_stage] + middle)}"
        for stage in stages
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for sent in transfers(stage, timeline, kind)
        if sent.to_stage in where and (sent.end_us - sent.start_us) * window.scale >= 0.4
    ]
    if not moves:
        return raw("")
    title = element("title", "transfers between stages, from the end of a pass to the arrival of its output")
    return element("path", title, d=raw("".join(moves)), class_="transfer-line")


def time_axis(windows: list[Window], bottom: float) -> Iterator[Markup]:
    """Lines and times across a drawing that ends at `bottom`."""
    shown_us = sum(window.end_us - window.start_us for window in windows)
    step_us = round_step(shown_us / 9)
    scale, unit = next(
        (pair for pair in ((1e-6, "s"), (1e-3, "ms")) if step_us * pair[0] >= 0.01), (1.0, "µs")
    )
    decimals = max(0, -math.floor(math.log10(step_us * scale) + 1e-9))
    for window in windows:
        for tick in range(math.ceil(window.start_us / step_us), math.floor(window.end_us / step_us) + 1):
            x = window.x(tick * step_us)
            yield element("line", x1=x, x2=x, y1=_TOP - 4, y2=bottom + 2, class_="grid")
            if x < _RIGHT - 24 or len(windows) == 1:
                text = f"{tick * step_us * scale:,.{decimals}f}"
                yield element("text", text, x=x, y=bottom + 17, class_="tick")
    yield element("text", f"time in {unit}", x=_LEFT, y=_TOP - 12, class_="unit")


def cut_marks(windows: list[Window], bottom: float) -> Iterator[Markup]:
    """A mark where the middle of a step is left out."""
    if len(windows) > 1:
        x = windows[1].left - _GAP / 2
        yield element("text", "⋯", x=x, y=(_TOP + bottom) / 2 + 4, class_="cut")


def legend_entries(estimate: Estimate) -> list[tuple[str, str]]:
    """(class, meaning) of this step's colours."""
    layout = estimate.parallelism
    split = SCHEDULE_KINDS[layout.schedule].splits
    entries = [
        (True, "forward", "F forward pass"),
        (True, "backward", "B backward pass (gradients of inputs)" if split else "B backward pass"),
        (split, "weight", "W gradients of weights"),
        *((True, style, f"{NAMES[style]} (part of a pass)") for style in PassCollectives.of(estimate).styles),
        (layout.pp > 1, "transfer", "transfer between stages (line)"),
        (estimate.durations.all_reduce_us.any(), "reduce", "all-reduce of gradients (lower third)"),
        (True, "optimizer", "optimizer"),
        (any(one.all_gather_s for one in estimate.stages), "gather", "all-gather of parameters"),
        (True, "idle", "waiting"),
    ]
    return [(style, text) for is_used, style, text in entries if is_used]
