"""Three plots of a regressor and one of all, as the shapes of an SVG."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from kernelcast.runtime.views.formatting import amount, percent, value_range
from kernelcast.runtime.views.page import Markup, element
from kernelcast.train.dataset import Array
from kernelcast.train.report.axes import Box, LogAxis, error_tick, frame, marks, polygon, ratio_ticks
from kernelcast.train.report.points import LAYOUT_FEATURES, Points, Rows

WIDTH, HEIGHT = 400.0, 372.0
"""Of a regressor's plots."""

OVERVIEW_WIDTH = 700.0

# The palette of Okabe and Ito, which colour-blind readers can tell apart, without its black. Shapes differ too, so that
# colour is not the only sign of a layout.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8C6BB1", "#7F7F7F", "#B5A400")
_SHAPES = (  # relative path, width of its line
    ("h0", 4.0),  # dot
    ("m-2-2h4v4h-4z", 0.0),  # square
    ("m0-3l3 5h-6z", 0.0),  # triangle
    ("m0-3l3 3l-3 3l-3-3z", 0.0),  # diamond
    ("m0 3l3-5h-6z", 0.0),  # triangle, point down
    ("m-2.5 0h5m-2.5-2.5v5", 1.5),  # plus
    ("m-2-2l4 4m0-4l-4 4", 1.5),  # cross
    ("m-3 0l5 3v-6z", 0.0),  # triangle, point to the left
    ("m-3-1h6v2h-6z", 0.0),  # bar
)
_BOX = Box(left=70, top=8, right=390, bottom=328)
_GAP = 34.0  # between the cells of a matrix, wide enough for the labels of neighbours
_MARGIN = 1.15  # of an axis beyond its values, as a factor


def agreement_plot(points: Points) -> Iterator[Markup]:
    """Held-out prediction over measured time, both logarithmic, with the diagonal and the 90 % band."""
    factors = np.exp(points.half_widths)
    every = np.concatenate([points.held_out_us, points.times_us * factors, points.times_us / factors])
    x = _across(every)
    y = replace(x, start=_BOX.bottom, end=_BOX.top)
    yield from frame(_BOX, x.ticks(_time, most=5), y.ticks(_time), "measured", "predicted, held out")
    for colour, group, factor in _bands(points):
        ends = points.times_us[group].min(), points.times_us[group].max()
        yield _band(x, y, ends, [(end / factor, end * factor) for end in ends], colour)
    yield polygon((_BOX.left, _BOX.right), (_BOX.bottom, _BOX.top), class_="ideal")
    yield from _scatter(points, x.at(points.times_us), y.at(points.held_out_us))
    if len(points.series) > 1:
        # The half above the diagonal is empty.
        yield element("text", "nodes × devices per node", x=_BOX.left + 8, y=_BOX.top + 14, class_="small")
        for place, (label, colour, (shape, width)) in enumerate(_styles(points)):
            left, middle = _BOX.left + 14 + place % 2 * 62, _BOX.top + 28 + place // 2 * 14
            yield marks([left], [middle], colour, shape=shape, width=width)
            yield element("text", label, x=left + 8, y=middle + 4, class_="small")


def errors_plot(points: Points) -> Iterator[Markup]:
    """Error of the held-out prediction over the size of the workload, both logarithmic, with the 90 % band."""
    ratios = points.held_out_us / points.times_us
    spread = max(0.001, float(np.abs(np.log(ratios)).max()), float(points.half_widths.max()))
    largest = math.exp(1.08 * spread)
    x = _across(points.sizes)
    y = LogAxis(low=1 / largest, high=largest, start=_BOX.bottom, end=_BOX.top)
    x_ticks = x.ticks(lambda size: amount(size, points.size_unit), most=4)
    x_name = "floating-point operations" if points.size_unit == "FLOP" else "data moved"
    y_ticks = y.ticks(error_tick, ratio_ticks(largest))
    yield from frame(_BOX, x_ticks, y_ticks, x_name, "predicted against measured")
    for colour, group, factor in _bands(points):
        ends = points.sizes[group].min() / 1.03, points.sizes[group].max() * 1.03
        yield _band(x, y, ends, [(1 / factor, factor)] * 2, colour)
    middle = float(y.at(1.0))
    yield polygon((_BOX.left, _BOX.right), (middle, middle), class_="ideal")
    yield from _scatter(points, x.at(points.sizes), y.at(ratios))


def coverage_plot(points: Points) -> Iterator[Markup]:
    """Which workloads were measured: every pair of features, ticks at the ends of the training range.

    For a collective: entries over layouts. Features that never vary, or always equal another one, are left out.
    """
    if set(LAYOUT_FEATURES) <= set(points.features):
        yield from _layout_coverage(points)
        return
    *columns, last = varying(points)
    rows = [*columns[1:], last] if columns else [last]
    columns = columns or [last]
    # The lower half of a matrix: one feature per column, one per row.
    width = (_BOX.right - _BOX.left + _GAP) / len(columns)
    height = (_BOX.bottom - _BOX.top + _GAP) / len(columns)
    for across, first in enumerate(columns):
        for down, second in enumerate(rows[across:], start=across):
            left, top = _BOX.left + across * width, _BOX.top + down * height
            cell = Box(left=left, top=top, right=left + width - _GAP, bottom=top + height - _GAP)
            yield from _pair(points, cell, (first, down == len(rows) - 1), (second, across == 0))


def overview_plot(
    names: Sequence[str], errors: Sequence[tuple[float, float | None]]
) -> tuple[list[Markup], float]:
    """Error of every regressor, filled, and the published one where it is known, hollow; and the SVG's height."""
    box = Box(left=240, top=6, right=OVERVIEW_WIDTH - 20, bottom=12 + 18.0 * len(names))
    shown = [(place, error) for place, (error, _) in enumerate(errors) if 0 < error < math.inf]
    published = [(place, error) for place, (_, error) in enumerate(errors) if error]
    every = [error for _, error in (*shown, *published)] or [0.01]
    x = LogAxis(low=min(every) / 1.3, high=max(every) * 1.3, start=box.left, end=box.right)
    y_ticks = [(box.top + 12 + 18.0 * place, name) for place, name in enumerate(names)]
    drawn = list(frame(box, x.ticks(percent), y_ticks, "mean error on held-out rows", ""))
    for places, fill, edge in ((published, "none", COLOURS[3]), (shown, COLOURS[0], COLOURS[0])):
        for place, error in places:
            x_y = {"cx": float(x.at(error)), "cy": y_ticks[place][0]}
            drawn.append(element("circle", r=3, fill=fill, stroke=edge, **x_y))
    return drawn, box.bottom + 42


def varying(points: Points) -> list[int]:
    """Columns of the features that vary and are not a copy of an earlier one; the first if none does."""
    found: list[int] = []
    for column in range(len(points.features)):
        values = points.workloads[:, column]
        copies = any(np.array_equal(values, points.workloads[:, earlier]) for earlier in found)
        if np.ptp(values) > 0 and not copies:
            found.append(column)
    return found or [0]


def _pair(points: Points, cell: Box, across: tuple[int, bool], down: tuple[int, bool]) -> Iterator[Markup]:
    """The distinct pairs of two features, each given as its column and whether its axis is labelled."""
    columns = [across[0], down[0]]
    values = np.maximum(points.workloads[:, columns], 1)
    ends = np.stack([values.min(axis=0), values.max(axis=0)], axis=1).tolist()
    x, y = (
        LogAxis(low=low / 1.25, high=high * 1.25, start=start, end=end)
        for (low, high), start, end in zip(
            ends, (cell.left, cell.bottom), (cell.right, cell.top), strict=True
        )
    )
    x_ticks, y_ticks = (
        axis.ticks(_plain, sorted(set(values))) if labelled else []
        for axis, values, (_, labelled) in zip((x, y), ends, (across, down), strict=True)
    )
    names = (points.features[column] if labelled else "" for column, labelled in (across, down))
    yield from frame(cell, x_ticks, y_ticks, *names)
    distinct, counts = np.unique(values, axis=0, return_counts=True)
    # A dot's area grows with the number of workloads at its place, between bounds that stay visible.
    widths = np.round(np.sqrt(6 + 44 * np.sqrt(counts / counts.max())))
    for width in np.unique(widths).tolist():
        chosen = distinct[widths == width]
        yield marks(x.at(chosen[:, 0]), y.at(chosen[:, 1]), COLOURS[0], width=width)
    (left, right), (bottom, top) = x.at(ends[0]).tolist(), y.at(ends[1]).tolist()
    yield polygon((left, right, right, left), (bottom, bottom, top, top), class_="range")


def _layout_coverage(points: Points) -> Iterator[Markup]:
    entries = np.maximum(points.workloads[:, points.features.index("entries")], 1)
    x = _across(entries)
    distance = (_BOX.bottom - _BOX.top) / len(points.series)
    heights = [_BOX.top + distance * (place + 0.6) for place in range(len(points.series))]
    y_ticks = list(zip(heights, points.series, strict=True))
    yield from frame(_BOX, x.ticks(amount, most=5), y_ticks, "entries", "nodes × devices per node")
    for y, rows, (_, colour, _) in zip(heights, points.series.values(), _styles(points), strict=True):
        places = x.at(entries[rows])
        yield marks(places, np.full(len(places), y), colour, shape="m0-5v10", width=0.8)
        ends = float(places.min()), float(places.max())
        yield polygon(ends, (y, y), class_="range")
        yield element("text", f"{len(places):,} rows", x=ends[0], y=y - 8, class_="unit small")


def _scatter(points: Points, x: Array, y: Array) -> Iterator[Markup]:
    for rows, (_, colour, (shape, width)) in zip(points.series.values(), _styles(points), strict=True):
        yield marks(x[rows], y[rows], colour, shape=shape, width=width)


def _styles(points: Points) -> Iterator[tuple[str, str, tuple[str, float]]]:
    """Label, colour and shape of every series."""
    return zip(points.series, cycle(COLOURS), cycle(_SHAPES), strict=False)


def _bands(points: Points) -> Iterator[tuple[str, Rows, float]]:
    """Rows of one series with the same interval: their colour, the rows, the factor that the interval reaches."""
    for rows, (_, colour, _) in zip(points.series.values(), _styles(points), strict=True):
        for half_width in np.unique(points.half_widths[rows]).tolist():
            yield colour, rows & (points.half_widths == half_width), math.exp(half_width)


def _band(
    x: LogAxis, y: LogAxis, ends: tuple[float, float], reach: Sequence[tuple[float, float]], colour: str
) -> Markup:
    """What lies between the lower and the upper value at both ends; straight, for both axes are logarithmic."""
    (left, right), (left_low, left_high), (right_low, right_high) = x.at(ends), *y.at(reach)
    corners = (left, right, right, left), (left_low, right_low, right_high, left_high)
    return polygon(*corners, fill=colour, opacity=0.22)


def _across(values: Array) -> LogAxis:
    """The box's horizontal axis, a little wider than the values."""
    return LogAxis(low=values.min() / _MARGIN, high=values.max() * _MARGIN, start=_BOX.left, end=_BOX.right)


def _time(time_us: float) -> str:
    return amount(time_us * 1e-6, "s")


def _plain(value: float) -> str:
    return value_range(value, value)
