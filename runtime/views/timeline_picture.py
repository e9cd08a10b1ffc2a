"""A simulated step as SVG: one row per stage, time from left to right."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.pipeline import Kind, StageTimeline, StepTimeline
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, chunks_on
from kernelcast.runtime.views.formatting import counted, round_step, seconds
from kernelcast.runtime.views.inside_passes import NAMES, InsidePasses
from kernelcast.runtime.views.page import Markup, element, legend, number, picture, raw
from kernelcast.runtime.views.simulated_step import transfers, update_parts

_WIDTH, _LEFT, _RIGHT, _TOP = 1200.0, 74.0, 1188.0, 30.0
_GAP = 44.0
_DETAILED_PASSES = 2600
"""Up to this many passes are shapes of their own, with a title each; more are one shape per stage and kind."""

_PASSES_PER_ROW = 260
"""Up to this many passes of a stage have some pixels each; of longer steps the beginning and the end are drawn."""

_MICRO_BATCHES_SHOWN = 16
"""Micro-batches shown at either end of a cut step, in addition to one per stage."""

_LANE = 0.24
"""Part of a row's height along which collectives inside passes are drawn."""

_ROWS = 96
_SHAPES = {  # kind: class, first and last fraction of the row's height
    Kind.FORWARD: ("forward", 0.0, 0.82),
    Kind.BACKWARD: ("backward", 0.0, 1.0),
    Kind.WEIGHT: ("weight", 0.28, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePicture:
    """The drawing and notes on what it leaves out."""

    svg: Markup
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Window:
    """A stretch of time and where on the page it is drawn."""

    start_us: float
    end_us: float
    left: float
    scale: float  # per µs

    def x(self, time_us: float) -> float:
        return self.left + (time_us - self.start_us) * self.scale


def timeline_picture(estimate: Estimate, timeline: StepTimeline) -> TimelinePicture:
    """Draw a step. Long steps are cut in the middle; with more than 96 stages, the first and last 48 are drawn."""
    windows = _windows(estimate, timeline)
    stages, notes = _drawn_stages(timeline.stages)
    if len(windows) > 1:
        hidden_us = windows[1].start_us - windows[0].end_us
        notes.append(f"{seconds(hidden_us * 1e-6)} in the middle, where the pattern repeats, are not drawn")
    height = 34.0 if len(stages) <= 16 else 22.0 if len(stages) <= 40 else 14.0
    bottom = _TOP + len(stages) * height
    drawn = sum(len(stage.passes) for stage in stages)
    detailed = drawn <= _DETAILED_PASSES and len(windows) == 1
    if not detailed:
        notes.append("too many passes to name each: rest the pointer on a row to see what its passes take")
    rows, inside = [], InsidePasses.of(estimate)
    for row, stage in enumerate(stages):
        y = _TOP + row * height
        rows.append(_row(stage, y, height, windows, estimate, inside, detailed=detailed))
    where = {stage.stage: _TOP + row * height for row, stage in enumerate(stages)}
    links = _transfers(stages, where, height, windows[0], timeline) if detailed else raw("")
    description = (
        f"One row per stage ({counted(len(timeline.stages), 'stage')}), time from left to right, "
        f"{seconds(timeline.step_us * 1e-6)} in all. The same figures are in the tables below."
    )
    svg = picture(
        "timeline",
        "Timeline of one simulated training step",
        description,
        *_axis(windows, bottom),
        *rows,
        links,
        *_cut_marks(windows, bottom),
        width=_WIDTH,
        height=bottom + 26,
    )
    return TimelinePicture(svg=svg, notes=tuple(notes))


def _windows(estimate: Estimate, timeline: StepTimeline) -> list[_Window]:
    step_us, room = max(timeline.step_us, 1e-9), _RIGHT - _LEFT
    whole = [_Window(0.0, step_us, _LEFT, room / step_us)]
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
    return [_Window(0.0, shown_us, _LEFT, scale), _Window(last_us, step_us, middle, scale)]


def _drawn_stages(stages: tuple[StageTimeline, ...]) -> tuple[list[StageTimeline], list[str]]:
    if len(stages) <= _ROWS:
        return list(stages), []
    half = _ROWS // 2
    return [*stages[:half], *stages[-half:]], [
        f"stages {half} to {len(stages) - half - 1} of {len(stages)} are not drawn"
    ]


def _row(
    stage: StageTimeline,
    y: float,
    height: float,
    windows: list[_Window],
    estimate: Estimate,
    inside: InsidePasses,
    *,
    detailed: bool,
) -> Markup:
    inner = height - (4.0 if height > 16 else 2.0)
    shapes = [
        element("text", f"stage {stage.stage}", x=_LEFT - 8, y=y + inner / 2 + 4, class_="label"),
        *(
            element(
                "rect",
                x=window.left,
                y=y,
                width=(window.end_us - window.start_us) * window.scale,
                height=inner,
                class_="idle",
            )
            for window in windows
        ),
    ]
    shapes += _named_passes(stage, y, inner, windows[0]) if detailed else _merged(stage, y, inner, windows)
    shapes += _inside(stage, y, inner, windows, inside)
    for span in stage.all_reduces:
        title = f"stage {stage.stage}: all-reduce of gradients, {seconds(span.duration_us * 1e-6)}"
        shapes += _span(title, "reduce", span.start_us, span.end_us, y + inner * 0.66, inner * 0.34, windows)
    for (name, start_us, end_us), style in zip(
        update_parts(stage, estimate), ("optimizer", "gather"), strict=True
    ):
        title = f"stage {stage.stage}: {name}, {seconds((end_us - start_us) * 1e-6)}"
        shapes += _span(title, style, start_us, end_us, y, inner, windows)
    return element("g", *shapes)


def _span(
    title: str, style: str, start_us: float, end_us: float, y: float, height: float, windows: list[_Window]
) -> Iterator[Markup]:
    for left, width in _pieces(start_us, end_us, windows):
        yield element("rect", element("title", title), x=left, y=y, width=width, height=height, class_=style)


def _pieces(start_us: float, end_us: float, windows: list[_Window]) -> Iterator[tuple[float, float]]:
    """The parts of a stretch of time that lie in a window: (x, width)."""
    for window in windows:
        first, last = max(start_us, window.start_us), min(end_us, window.end_us)
        if last > first:
            yield window.x(first), (last - first) * window.scale


def _named_passes(stage: StageTimeline, y: float, height: float, window: _Window) -> Iterator[Markup]:
    several = len({one.chunk for one in stage.passes}) > 1
    for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True):
        if end_us <= start_us:
            continue
        style, low, high = _SHAPES[one.kind]
        left, width = window.x(start_us), (end_us - start_us) * window.scale
        where = f"stage {stage.stage}, chunk {one.chunk}" if several else f"stage {stage.stage}"
        title = (
            f"{where}: {one.kind.value} pass of micro-batch {one.micro_batch}, {seconds((end_us - start_us) * 1e-6)}, "
            f"from {seconds(start_us * 1e-6)}"
        )
        # A thin gap between neighbours, where there is room.
        gap = 0.6 if width > 4 else 0.0
        yield element(
            "rect",
            element("title", title),
            x=left,
            y=y + low * height,
            width=width - gap,
            height=(high - low) * height,
            class_=style,
        )
        label = f"{one.kind.value[0].upper()}{one.micro_batch}"
        if height > 16 and width > 6.3 * len(label) + 1.5:
            middle = y + (low + high) / 2 * height + 3.5
            yield element("text", label, x=left + (width - gap) / 2, y=middle, class_=f"in-{style}")


def _merged(stage: StageTimeline, y: float, height: float, windows: list[_Window]) -> Iterator[Markup]:
    """One shape for all passes of a kind: rectangles as steps of a path."""
    for kind, (style, low, high) in _SHAPES.items():
        moves: list[str] = []
        lengths = []
        for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True):
            if one.kind is not kind:
                continue
            lengths.append(end_us - start_us)
            moves += _steps(start_us, end_us, y + low * height, (high - low) * height, windows)
        if moves:
            title = (
                f"stage {stage.stage}: {len(lengths):,} {kind.value} passes of {_range_words(lengths)} each, "
                f"{seconds(sum(lengths) * 1e-6)} in all"
            )
            yield element("path", element("title", title), d=raw("".join(moves)), class_=style)


def _inside(
    stage: StageTimeline, y: float, height: float, windows: list[_Window], inside: InsidePasses
) -> Iterator[Markup]:
    """A lane along the top of all passes: how much of each its collectives of experts and contexts take, together."""
    for wanted in inside.styles:
        moves: list[str] = []
        lengths = []
        for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True):
            for style, first_us, last_us in inside.parts(stage.stage, one.kind, start_us, end_us):
                if style == wanted:
                    lengths.append(last_us - first_us)
                    moves += _steps(first_us, last_us, y, _LANE * height, windows)
        if moves:
            title = (
                f"stage {stage.stage}: {NAMES[wanted]} inside passes, {_range_words(lengths)} of each, "
                f"{seconds(sum(lengths) * 1e-6)} in all"
            )
            yield element("path", element("title", title), d=raw("".join(moves)), class_=wanted)


def _steps(start_us: float, end_us: float, y: float, height: float, windows: list[_Window]) -> Iterator[str]:
    """A rectangle in each window, as steps of a path."""
    for left, width in _pieces(start_us, end_us, windows):
        thin = max(0.15, width - (0.5 if width > 2 else 0.0))
        yield f"M{number(left)} {number(y)}h{number(thin)}v{number(height)}h{number(-thin)}z"


def _range_words(lengths_us: list[float]) -> str:
    low, high = seconds(min(lengths_us) * 1e-6), seconds(max(lengths_us) * 1e-6)
    return low if low == high else f"{low} to {high}"


def _transfers(
    stages: Iterable[StageTimeline],
    where: dict[int, float],
    height: float,
    window: _Window,
    timeline: StepTimeline,
) -> Markup:
    """A line from the end of every pass to where its output arrives."""
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


def _axis(windows: list[_Window], bottom: float) -> Iterator[Markup]:
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


def _cut_marks(windows: list[_Window], bottom: float) -> Iterator[Markup]:
    if len(windows) > 1:
        x = windows[1].left - _GAP / 2
        yield element("text", "⋯", x=x, y=(_TOP + bottom) / 2 + 4, class_="cut")


def timeline_legend(estimate: Estimate) -> Markup:
    """What the colours and shapes of this step mean."""
    return legend(legend_entries(estimate))


def legend_entries(estimate: Estimate) -> list[tuple[str, str]]:
    """The classes of this step's colours, with what they mean."""
    layout = estimate.parallelism
    split = SCHEDULE_KINDS[layout.schedule].splits
    entries = [
        (True, "forward", "F forward pass"),
        (True, "backward", "B backward pass (gradients of inputs)" if split else "B backward pass"),
        (split, "weight", "W gradients of weights"),
        *((True, style, f"{NAMES[style]} (part of a pass)") for style in InsidePasses.of(estimate).styles),
        (layout.pp > 1, "transfer", "transfer between stages (line)"),
        (estimate.durations.all_reduce_us.any(), "reduce", "all-reduce of gradients (lower third)"),
        (True, "optimizer", "optimizer"),
        (any(one.all_gather_s for one in estimate.stages), "gather", "all-gather of parameters"),
        (True, "idle", "waiting"),
    ]
    return [(style, text) for there, style, text in entries if there]
