"""Three plots of a regressor and one of all, each as an SVG of its own (matplotlib; extra `report`).

Many points are drawn as one picture inside the SVG, few as shapes.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator

from kernelcast.train.dataset import Array
from kernelcast.train.report.canvas import INK, Size, canvas, logarithmic
from kernelcast.train.report.points import LAYOUT_FEATURES, Points, Rows
from kernelcast.train.report.ticks import ratio_ticks
from kernelcast.train.report.words import amount_text, error_tick, percent_text, time_text

# Blue, orange, green, … of a palette for people who see colours differently (Okabe and Ito), black left out. Markers
# differ too, so that no layout is told by its colour alone.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8C6BB1", "#7F7F7F", "#B5A400")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_SHAPES_UP_TO = 300
_SIZED_SHAPES_UP_TO = 40  # each is a path of its own
INCHES = (4.4, 3.7)
"""Width and height of a regressor's plots."""

_MARGIN = 1.15  # of an axis beyond its values, as a factor


def agreement_svg(points: Points) -> str:
    """Held-out prediction over measured time, both logarithmic, with the diagonal and the 90 % band."""
    with canvas(INCHES) as (figure, written):
        axes = figure.add_subplot()
        every = np.concatenate([points.times_us, points.held_out_us])
        low, high = every.min() / _MARGIN, every.max() * _MARGIN
        for colour, rows in _coloured(points):
            for half_width, group in _bands(points, rows):
                ends = np.array([points.times_us[group].min(), points.times_us[group].max()])
                wide = math.exp(half_width)
                axes.fill_between(ends, ends / wide, ends * wide, color=colour, alpha=0.22, linewidth=0)
        axes.plot([low, high], [low, high], color=INK, linewidth=0.8)
        _scatter(axes, points, points.times_us, points.held_out_us)
        for axis in (axes.xaxis, axes.yaxis):
            logarithmic(axis, low, high, time_text)
        axes.set_aspect("equal")
        axes.set(xlabel="measured", ylabel="predicted, held out")
        _legend(axes, points)
        return written()


def errors_svg(points: Points) -> str:
    """Error of the held-out prediction over the size of the workload, both logarithmic, with the 90 % band."""
    with canvas(INCHES) as (figure, written):
        axes = figure.add_subplot()
        ratios = points.held_out_us / points.times_us
        largest = float(np.exp(np.abs(np.log(ratios)).max(initial=0.001)))
        largest = max(largest, math.exp(float(points.half_widths.max(initial=0.0)))) ** 1.08
        for colour, rows in _coloured(points):
            for half_width, group in _bands(points, rows):
                ends = [points.sizes[group].min() / 1.03, points.sizes[group].max() * 1.03]
                wide = math.exp(half_width)
                axes.fill_between(ends, 1 / wide, wide, color=colour, alpha=0.22, linewidth=0)
        axes.axhline(1.0, color=INK, linewidth=0.8)
        _scatter(axes, points, points.sizes, ratios)
        low, high = points.sizes.min() / _MARGIN, points.sizes.max() * _MARGIN
        logarithmic(axes.xaxis, low, high, lambda size: amount_text(size, points.size_unit), most=4)
        logarithmic(axes.yaxis, 1 / largest, largest, error_tick, ratio_ticks(largest))
        axes.set(
            xlabel="floating-point operations" if points.size_unit == "FLOP" else "data moved",
            ylabel="predicted against measured",
        )
        return written()


def coverage_svg(points: Points) -> str:
    """Which workloads were measured: every pair of features, ticks at the ends of the training range.

    For a collective: entries over layouts. Features that never vary, or always equal another one, are left out.
    """
    with canvas(INCHES) as (figure, written):
        if set(LAYOUT_FEATURES) <= set(points.features):
            _layout_coverage(figure.add_subplot(), points)
            return written()
        *columns, last = varying(points)
        if not columns:
            _pair(figure.add_subplot(), points, last, last, labels=(True, False))
        # The lower half of a matrix: one feature per column below, one per row at the left.
        for across, first in enumerate(columns):
            for down, second in enumerate([*columns, last][across + 1 :], start=across):
                axes = figure.add_subplot(len(columns), len(columns), down * len(columns) + across + 1)
                _pair(axes, points, first, second, labels=(down == len(columns) - 1, across == 0))
        return written()


def overview_svg(names: Sequence[str], errors: Sequence[tuple[float, float | None]]) -> tuple[str, Size]:
    """Error of every regressor, filled, and the published one where there is one, hollow; and the SVG's size."""
    inches = (7.2, 0.7 + 0.19 * len(names))
    with canvas(inches) as (figure, written):
        axes = figure.add_subplot()
        shown = [(place, error) for place, (error, _) in enumerate(errors) if 0 < error < math.inf]
        published = [(place, error) for place, (_, error) in enumerate(errors) if error]
        for places, filled in ((published, False), (shown, True)):
            axes.scatter(
                [error for _, error in places],
                [place for place, _ in places],
                s=24,
                color=COLOURS[0] if filled else "none",
                edgecolors=COLOURS[0] if filled else COLOURS[3],
                linewidths=0 if filled else 1.1,
            )
        axes.yaxis.set_major_locator(FixedLocator(range(len(names))))
        axes.yaxis.set_major_formatter(FixedFormatter(names))
        axes.set_ylim(len(names) - 0.3, -0.7)
        every = [error for _, error in (*shown, *published)] or [0.01]
        logarithmic(
            axes.xaxis, min(every) / 1.3, max(every) * 1.3, lambda error: percent_text(error, digits=1)
        )
        axes.set_xlabel("mean error on held-out rows")
        return written(), inches


def varying(points: Points) -> list[int]:
    """Columns of the features that vary and are not a copy of an earlier one; the first where none is."""
    found: list[int] = []
    for column in range(len(points.features)):
        values = points.workloads[:, column]
        copies = any(np.array_equal(values, points.workloads[:, earlier]) for earlier in found)
        if np.ptp(values) > 0 and not copies:
            found.append(column)
    return found or [0]


def _pair(axes: Axes, points: Points, first: int, second: int, labels: tuple[bool, bool]) -> None:
    """The distinct pairs of two features; `labels` says which of the two axes is named and numbered."""
    distinct, counts = np.unique(points.workloads[:, [first, second]], axis=0, return_counts=True)
    # A workload's area follows how many share its place, between bounds that stay visible.
    areas = 4 + 26 * np.sqrt(counts / counts.max())
    axes.scatter(
        np.maximum(distinct[:, 0], 1),
        np.maximum(distinct[:, 1], 1),
        s=areas,
        color=COLOURS[0],
        alpha=0.6,
        linewidths=0,
        rasterized=len(distinct) > _SIZED_SHAPES_UP_TO,
    )
    for axis, column, labelled in ((axes.xaxis, first, labels[0]), (axes.yaxis, second, labels[1])):
        low, high = _range(points.workloads[:, column])
        logarithmic(axis, low / 1.25, high * 1.25, _plain if labelled else lambda _: "", sorted({low, high}))
        if labelled:
            axis.set_label_text(points.features[column])
            axis.labelpad = 1
    axes.tick_params(labelsize=7.5)
    ends = [_range(points.workloads[:, column]) for column in (first, second)]
    (left, right), (bottom, top) = ends
    axes.plot(
        [left, right, right, left, left],
        [bottom, bottom, top, top, bottom],
        color=INK,
        linewidth=0.7,
        linestyle=(0, (3, 3)),
    )


def _layout_coverage(axes: Axes, points: Points) -> None:
    entries = np.maximum(points.workloads[:, points.features.index("entries")], 1)
    labels = list(points.series)
    for place, (colour, rows) in enumerate(_coloured(points)):
        axes.scatter(
            entries[rows],
            np.full(int(rows.sum()), place),
            s=26,
            marker="|",
            color=colour,
            linewidths=0.8,
            rasterized=int(rows.sum()) > _SHAPES_UP_TO,
        )
        ends = [float(entries[rows].min()), float(entries[rows].max())]
        axes.plot(ends, [place, place], color=INK, linewidth=0.7, linestyle=(0, (3, 3)))
        axes.annotate(
            f"{int(rows.sum()):,} rows", (ends[0], place), (0, 7), textcoords="offset points", fontsize=7.5
        )
    axes.yaxis.set_major_locator(FixedLocator(range(len(labels))))
    axes.yaxis.set_major_formatter(FixedFormatter(labels))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    low, high = _range(entries)
    logarithmic(axes.xaxis, low / _MARGIN, high * _MARGIN, amount_text)
    axes.set(xlabel="entries", ylabel="nodes × devices per node")


def _scatter(axes: Axes, points: Points, x: Array, y: Array) -> None:
    for (colour, rows), marker in zip(_coloured(points), _cycled(MARKERS), strict=False):
        axes.scatter(
            x[rows],
            y[rows],
            s=9 if len(points) > _SHAPES_UP_TO else 16,
            marker=marker,
            color=colour,
            alpha=0.55,
            linewidths=0,
            rasterized=len(points) > _SHAPES_UP_TO,
        )


def _coloured(points: Points) -> Iterator[tuple[str, Rows]]:
    return zip(_cycled(COLOURS), points.series.values(), strict=False)


def _cycled(values: Sequence[str]) -> Iterator[str]:
    while True:
        yield from values


def _bands(points: Points, rows: Rows) -> Iterator[tuple[float, Rows]]:
    """The distinct half-widths among some rows, each with its rows."""
    for half_width in np.unique(points.half_widths[rows]).tolist():
        yield half_width, rows & (points.half_widths == half_width)


def _legend(axes: Axes, points: Points) -> None:
    if list(points.series) == [""]:
        return
    for (label, _), (colour, _), marker in zip(
        points.series.items(), _coloured(points), _cycled(MARKERS), strict=False
    ):
        axes.scatter([], [], s=16, marker=marker, color=colour, linewidths=0, label=label)
    # The half above the diagonal is empty but for its edge.
    axes.legend(
        loc="upper left", title="nodes × devices per node", title_fontsize=8, ncols=2, columnspacing=0.8
    )


def _range(values: Array) -> tuple[float, float]:
    return max(float(values.min()), 1.0), max(float(values.max()), 1.0)


def _plain(value: float) -> str:
    return f"{value:g}" if value < 1e5 else amount_text(value)
