"""The plots of a report, drawn by matplotlib as SVG: three of each regressor and one of all."""

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from kernelcast.runtime.bundle.regressor_entry import LEVEL
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.runtime.operators import OperatorClass
from kernelcast.runtime.views.formatting import amount, percent, three_digits, value_range
from kernelcast.runtime.views.page import Markup, element
from kernelcast.train.dataset import Array, Table
from kernelcast.train.intervals import log_half_widths
from kernelcast.train.report.figures import OperatorFigures, TrainingFigures

# The palette of Okabe and Ito for colour-blind readers, without its black. Markers differ too.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#8C6BB1", "#7F7F7F", "#B5A400")
_MARKERS = "os^Dv+x<_"
_INK, _INK_IN_THE_DARK = "#1d2733", "#e3e6e8"
_STYLE = Path(__file__).with_name("report.mplstyle")
# More points are one bitmap inside the SVG.
_MOST_SHAPES = 50
# Errors as ratios: percent near 1, factors beyond.
_RATIOS = (1.001, 1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0, 1e4)

Rows = npt.NDArray[np.bool_]
"""A mask, [rows]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The drawn rows of a `table`: held-out predictions in µs [rows], and sizes [rows], which count `size_unit`.

    `half_widths` [rows] belong to the 90 % interval of the logarithm. Sizes are FLOPs of compute-bound operators, bytes
    moved by the others.
    """

    table: Table
    held_out_us: Array
    half_widths: Array
    sizes: Array
    size_unit: str

    @classmethod
    def of(cls, table: Table, held_out_us: Array, half_widths: Array, dtype: str) -> "Points":
        """The rows of a table whose held-out prediction is a finite number above 0."""
        drawn = np.isfinite(held_out_us) & (held_out_us > 0)
        table = table.part(drawn)
        law, vectors = table.law, table.workloads.tolist()
        if compute := law.operator_class is OperatorClass.COMPUTE:
            sizes = [law.flops(table.direction, vector) for vector in vectors]
        else:
            element_bytes = ELEMENT_BYTES.get(dtype, 1)
            sizes = [law.moved_bytes(table.direction, vector, element_bytes) for vector in vectors]
        return cls(
            table=table,
            held_out_us=held_out_us[drawn],
            half_widths=half_widths[drawn],
            # A feature of 0 (no layer) moves nothing, which a logarithmic axis cannot show.
            sizes=np.maximum(np.array(sizes), 1.0),
            size_unit="FLOP" if compute else "B",
        )

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(self.table.law.features)

    @property
    def series(self) -> Mapping[str, Rows]:
        """The rows of each layout of a collective ("2 × 4": nodes × GPUs per node); else all rows, named ""."""
        layouts = {
            f"{nodes} × {gpus}": self.table.in_layout((nodes, gpus)) for nodes, gpus in self.table.layouts
        }
        return layouts or {"": np.ones(len(self.table), dtype=np.bool_)}

    @property
    def styles(self) -> Iterator[tuple[str, Rows, str, str]]:
        """Label, rows, colour and marker of every series."""
        return zip(self.series, self.series.values(), cycle(_COLOURS), cycle(_MARKERS), strict=False)


def image(draw: Callable[[], Figure], title: str, description: str) -> Markup:
    """A figure as an image inside the page, which follows the page's light and dark; its text is the description."""
    content = BytesIO()
    with style.context(_STYLE):
        draw().savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    dark = f"@media (prefers-color-scheme: dark) {{ svg {{ --ink: {_INK_IN_THE_DARK} }} }}"
    svg = content.getvalue().decode().replace(_INK, f"var(--ink, {_INK})")
    svg = re.sub(r"(<svg [^>]*>)", rf"\1<style>{dark}</style>", svg, count=1)
    source = base64.b64encode(svg.encode()).decode()
    return element("img", src=f"data:image/svg+xml;base64,{source}", alt=f"{title}: {description}")


def overview(figures: TrainingFigures) -> Markup:
    ordered = sorted(figures.by_role, key=lambda row: row[1].error)
    names = [f"{role.name}, {operator.entry.direction_text}" for operator, role in ordered]
    errors = [(role.error, role.reference_error) for _, role in ordered]
    best, worst = (f"{names[at]} with {percent(errors[at][0])}" for at in (0, -1))
    compared = any(reference is not None for _, reference in errors)
    caption = (
        f"Mean error on held-out rows{' (filled) and error of the reference (hollow)' if compared else ''}."
    )
    description = f"Error of each regressor in each of its {len(ordered)} roles, from {best} to {worst}."
    shown = image(lambda: overview_plot(names, errors), "Errors of all regressors", description)
    return element("figure", shown, element("figcaption", caption), class_="overview")


def regressor_plots(operator: OperatorFigures) -> Iterator[Markup]:
    """The three plots of a regressor with their captions; none where its rows are not known."""
    if operator.selected is None:
        return
    entry, rows = operator.entry, operator.selected.table
    widths = log_half_widths(entry.interval, rows.workloads)
    points = Points.of(rows, operator.selected.held_out_us, widths, entry.dtype)
    if not len(points.table):
        return
    reach = np.unique(np.expm1(points.half_widths)).tolist()
    band = " to ".join(dict.fromkeys(percent(end) for end in (reach[0], reach[-1])))
    level, lost = percent(LEVEL, digits=0), len(rows) - len(points.table)
    missing = f" {lost} rows whose prediction is not a number are not shown." if lost else ""
    unit = "floating-point operations" if points.size_unit == "FLOP" else "bytes moved"
    sizes, times_s = (
        f"{amount(values.min(), name)} to {amount(values.max(), name)}"
        for values, name in ((points.sizes, points.size_unit), (points.table.times_us * 1e-6, "s"))
    )
    worst = percent(float(np.abs(points.held_out_us / points.table.times_us - 1).max()))
    for plot, title, description, caption in (
        (
            agreement_plot,
            "predicted over measured time",
            f"{len(points.table):,} held-out rows, {times_s}; the points lie along the diagonal with a mean error of "
            f"{percent(entry.validation_error)}.",
            f"Predicted against measured, with the {level} band.{missing}",
        ),
        (
            errors_plot,
            f"error of the held-out prediction over {unit}",
            f"{sizes}; the largest error is {worst}, the {level} band reaches {band} either way.",
            f"Error over size; the {level} band reaches {band} either way.",
        ),
        (
            coverage_plot,
            "sampled workloads",
            f"The {len(rows):,} sampled workloads, {operator.ranges}.",
            "Sampled workloads; the training range is dashed.",
        ),
    ):
        shown = image(partial(plot, points), f"{operator.name}: {title}", description)
        yield element("figure", shown, element("figcaption", caption))


def agreement_plot(points: Points) -> Figure:
    """Held-out prediction over measured time, both logarithmic, with the diagonal and the 90 % band."""
    figure, axes = _axes("measured", "predicted, held out")
    factors = np.exp(points.half_widths)
    every = np.concatenate(
        [points.held_out_us, points.table.times_us * factors, points.table.times_us / factors]
    )
    for name in "xy":
        _log_axis(axes, name, every.min(), every.max(), lambda time_us: amount(time_us * 1e-6, "s"))
    for colour, rows, factor in _bands(points):
        ends = np.array([points.table.times_us[rows].min(), points.table.times_us[rows].max()])
        axes.fill_between(ends, ends / factor, ends * factor, color=colour, alpha=0.22, linewidth=0)
    axes.axline((1, 1), (10, 10), color=_INK, linewidth=0.8)
    _scatter(axes, points, points.table.times_us, points.held_out_us)
    if len(points.series) > 1:
        axes.legend(title="nodes × devices per node", loc="upper left", ncols=2, frameon=False, fontsize=7)
    return figure


def errors_plot(points: Points) -> Figure:
    """Error of the held-out prediction over the size of the workload, both logarithmic, with the 90 % band."""
    x_name = "floating-point operations" if points.size_unit == "FLOP" else "data moved"
    figure, axes = _axes(x_name, "predicted against measured")
    ratios = points.held_out_us / points.table.times_us
    spread = max(0.001, float(np.abs(np.log(ratios)).max()), float(points.half_widths.max()))
    largest, unit = math.exp(1.08 * spread), points.size_unit
    _log_axis(axes, "x", points.sizes.min(), points.sizes.max(), lambda size: amount(size, unit))
    _log_axis(axes, "y", 1 / largest, largest, error_tick, ratio_ticks(largest))
    axes.set_ylim(1 / largest, largest)
    for colour, rows, factor in _bands(points):
        ends = [points.sizes[rows].min() / 1.03, points.sizes[rows].max() * 1.03]
        axes.fill_between(ends, 1 / factor, factor, color=colour, alpha=0.22, linewidth=0)
    axes.axhline(1.0, color=_INK, linewidth=0.8)
    _scatter(axes, points, points.sizes, ratios)
    return figure


def coverage_plot(points: Points) -> Figure:
    """Which workloads were measured: every pair of features, ticks at the ends of the training range.

    For a collective: entries over layouts. Features that never vary, or always equal another one, are left out.
    """
    if points.table.layouts:
        return _layout_coverage(points)
    *columns, last = varying(points)
    rows = [*columns[1:], last] if columns else [last]
    columns = columns or [last]
    figure = Figure()
    cells = figure.subplots(len(rows), len(columns), sharex="col", sharey="row", squeeze=False)
    for down, second in enumerate(rows):
        for across, first in enumerate(columns):
            axes = cells[down, across]
            if across > down:  # the lower half of a matrix
                axes.set_visible(False)
                continue
            _pair(axes, np.maximum(points.table.workloads[:, [first, second]], 1))
            if down == len(rows) - 1:
                axes.set_xlabel(points.features[first])
            if across == 0:
                axes.set_ylabel(points.features[second])
    return figure


def overview_plot(names: Sequence[str], errors: Sequence[tuple[float, float | None]]) -> Figure:
    """Error of every regressor, filled, and the published one where it is known, hollow."""
    height = 0.6 + 0.19 * len(names)
    figure = Figure(figsize=(7.3, height))
    axes = figure.subplots(gridspec_kw={"left": 0.32, "bottom": 0.5 / height})
    shown = [(error, place) for place, (error, _) in enumerate(errors) if 0 < error < math.inf]
    published = [(error, place) for place, (_, error) in enumerate(errors) if error]
    every = [error for error, _ in (*shown, *published)] or [0.01]
    for places, colour, fill in ((published, _COLOURS[3], "none"), (shown, _COLOURS[0], "full")):
        for error, place in places:
            axes.plot(error, place, "o", color=colour, fillstyle=fill)
    _log_axis(axes, "x", min(every), max(every), percent)
    axes.set_xlabel("mean error on held-out rows")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    return figure


def varying(points: Points) -> list[int]:
    """Columns of the features that vary and are not a copy of an earlier one; the first if none does."""
    found: list[int] = []
    for column in range(len(points.features)):
        values = points.table.workloads[:, column]
        copies = any(np.array_equal(values, points.table.workloads[:, earlier]) for earlier in found)
        if np.ptp(values) > 0 and not copies:
            found.append(column)
    return found or [0]


def ratio_ticks(largest: float) -> list[float]:
    """Ratios around 1, mirrored on a logarithmic axis, out to `largest` (above 1): the two outermost round ones."""
    outer = max((ratio for ratio in _RATIOS if ratio <= largest), default=_RATIOS[0])
    # The inner one must overlap neither the outer one nor the 0 in the middle.
    spaced = [r for r in _RATIOS if 0.2 * math.log(largest) < math.log(r) < 0.6 * math.log(outer)]
    above = [outer, *spaced[-1:]]
    # Small errors mirror as percent: −10 %, not the −9.09 % of the inverse factor.
    return sorted({1.0, *above, *(2 - ratio if ratio < 1.4 else 1 / ratio for ratio in above)})


def error_tick(ratio: float) -> str:
    """Predicted / measured as an error: `+5 %`, `−20 %`; factors of 2 and more as `× 4` and `÷ 4`."""
    if max(ratio, 1 / ratio) > 1.9:
        return f"× {three_digits(ratio)}" if ratio > 1 else f"÷ {three_digits(1 / ratio)}"
    return "0" if ratio == 1 else f"{(ratio - 1) * 100:+.2g} %".replace("-", "−")


def _axes(x_name: str, y_name: str) -> tuple[Figure, Axes]:
    figure = Figure()
    axes = figure.subplots()
    axes.set(xlabel=x_name, ylabel=y_name)
    return figure, axes


def _log_axis(
    axes: Axes,
    name: str,
    low: float,
    high: float,
    label: Callable[[float], str],
    ticks: Sequence[float] = (),
) -> None:
    """A logarithmic axis, "x" or "y", a little wider than its values, with the given ticks or a few round ones."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 1.5 else (1, 3) if decades < 2.5 else (1,)
    axes.set(**{f"{name}scale": "log", f"{name}lim": (low / 1.15, high * 1.15)})
    axis: Axis = getattr(axes, f"{name}axis")
    round_ones = LogLocator(subs=steps, numticks=6) if decades > 0.6 else MaxNLocator(4)
    axis.set_major_locator(FixedLocator(ticks) if ticks else round_ones)
    axis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axis.set_minor_locator(NullLocator())


def _scatter(axes: Axes, points: Points, x: Array, y: Array) -> None:
    for label, rows, colour, marker in points.styles:
        is_bitmap = len(points.table) > _MOST_SHAPES
        axes.plot(x[rows], y[rows], marker, color=colour, alpha=0.7, label=label, rasterized=is_bitmap)


def _bands(points: Points) -> Iterator[tuple[str, Rows, float]]:
    """Rows of one series with the same interval: their colour, the rows, the factor that the interval reaches."""
    for _, rows, colour, _ in points.styles:
        for half_width in np.unique(points.half_widths[rows]).tolist():
            yield colour, rows & (points.half_widths == half_width), math.exp(half_width)


def _pair(axes: Axes, values: Array) -> None:
    """The distinct pairs of two features, `values` [rows, 2], and their training range, dashed."""
    distinct, counts = np.unique(values, axis=0, return_counts=True)
    # A dot's area grows with the number of workloads at its place, between bounds that stay visible.
    areas = 4 + 30 * np.sqrt(counts / counts.max())
    x, y = distinct.T
    axes.scatter(x, y, s=areas, color=_COLOURS[0], alpha=0.7, linewidth=0, rasterized=True)
    (left, bottom), (right, top) = values.min(axis=0), values.max(axis=0)
    corners = [left, right, right, left, left], [bottom, bottom, top, top, bottom]
    axes.plot(*corners, "--", color=_INK, linewidth=0.6)
    for name, low, high in (("x", left, right), ("y", bottom, top)):
        _log_axis(axes, name, low, high, lambda value: value_range(value, value), sorted({low, high}))


def _layout_coverage(points: Points) -> Figure:
    """Entries over layouts, one row of ticks per layout."""
    figure, axes = _axes("entries", "nodes × devices per node")
    entries = np.maximum(points.table.workloads[:, points.features.index("entries")], 1)
    _log_axis(axes, "x", entries.min(), entries.max(), amount)
    for place, (_, rows, colour, _) in enumerate(points.styles):
        own, is_bitmap = entries[rows], rows.sum() > _MOST_SHAPES
        axes.plot(own, np.full(len(own), place), "|", color=colour, markersize=8, rasterized=is_bitmap)
        axes.hlines(place, own.min(), own.max(), color=_INK, linestyles="dashed", linewidth=0.6)
        axes.annotate(
            f"{len(own):,} rows", (own.min(), place), (0, 6), textcoords="offset points", fontsize=7
        )
    axes.set_yticks(range(len(points.series)), list(points.series))
    axes.set_ylim(len(points.series) - 0.5, -0.7)
    return figure
