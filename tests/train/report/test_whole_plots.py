"""All that stands in a plot, to the digit: `whole_plots.txt`, which WRITE_WHOLE_PLOTS=1 pytest THIS_FILE writes again.

Not pixels, which depend on fonts and versions: sizes, limits, ticks, texts, and every line and area with its values.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Table
from kernelcast.train.report.plots import (
    Points,
    agreement_plot,
    coverage_plot,
    error_tick,
    errors_plot,
    image,
    overview_plot,
    ratio_ticks,
)

TEXTS = Path(__file__).with_name("whole_plots.txt")
STYLE = ("savefig.transparent", "svg.fonttype", "svg.hashsalt", "text.parse_math", "axes.axisbelow", "grid.color",
         "grid.linewidth", "axes.grid", "font.size", "text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color",
         "ytick.color")  # fmt: skip


def short(values: object) -> str:
    """Four digits each; of many their number, and the ends."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    ends = flat if len(flat) <= 30 else np.array([flat[0], flat[-1]])
    return f"{len(flat)}: " * (len(flat) > 30) + " ".join(f"{one:.4g}" for one in ends)


def of_collection(one: Collection) -> str:
    faces, edges = (
        [to_hex(colour, keep_alpha=True) for colour in kind]
        for kind in (one.get_facecolor(), one.get_edgecolor())
    )
    dots = one.get_sizes() if isinstance(one, PathCollection) else ()
    corners = () if len(dots) else one.get_paths()[0].vertices
    return (
        f"area {faces} {edges} width {short(one.get_linewidth())} at {short(one.get_offsets())} dots {short(dots)} "
        f"corners {short(corners)}{' bitmap' * bool(one.get_rasterized())}"
    )


def of_axes(axes: Axes, *, only: str = "") -> Iterator[str]:
    if not only:
        yield f"axes at {short(axes.get_position().extents)}{'' if axes.get_visible() else ' hidden'}"
    for name in only or "xy":
        axis, limits = getattr(axes, f"{name}axis"), sorted(getattr(axes, f"get_{name}lim")())
        ticks = [one for one in axis.get_majorticklocs() if limits[0] <= one <= limits[1]]
        named = axis.get_major_formatter().format_ticks(ticks)
        yield (
            f"  {name} {axis.get_scale()} {axis.get_label_text()!r} {short(getattr(axes, f'get_{name}lim')())}: "
            + (
                ", ".join(f"{tick:.4g} {text!r}" for tick, text in zip(ticks, named, strict=True))
                + f"; {len(axis.get_minorticklocs())} minor"
            )
        )
    yield f"  spines {[name for name, spine in axes.spines.items() if spine.get_visible()]}"
    for line in axes.lines:
        values = line.get_xydata() if type(line) is Line2D else (line.get_xy1(), line.get_xy2())
        label = line.get_label() if not str(line.get_label()).startswith("_") else ""
        yield (
            f"  line {to_hex(line.get_color())} alpha {line.get_alpha()} width {line.get_linewidth():g} "
            f"{line.get_linestyle()} {line.get_marker()} {line.get_markersize():g} {line.get_fillstyle()} {label!r} "
            f"{short(values)}{' bitmap' * bool(line.get_rasterized())}"
        )
    for one in axes.collections:
        yield f"  {of_collection(one)}"
    for text in axes.texts:
        yield f"  text {text.get_text()!r} {text.get_fontsize():g} at {short(text.xy)} + {text.xyann}"  # type: ignore[attr-defined]
    if (legend := axes.get_legend()) is not None:
        names, size = [one.get_text() for one in legend.get_texts()], legend.get_texts()[0].get_fontsize()
        look = f"{legend._loc} {legend._ncols} {legend.get_frame_on()} {size:g}"
        yield f"  legend {legend.get_title().get_text()!r} {names} {look}"


def of_figure(title: str, draw: Callable[[], Figure]) -> str:
    lines: list[str] = []

    def drawn() -> Figure:
        figure = draw()
        parameters = figure.subplotpars
        edges = [getattr(parameters, one) for one in ("left", "right", "bottom", "top", "wspace", "hspace")]
        lines.append(f"{title}: size {short(figure.get_size_inches())} edges {short(edges)}")
        lines.extend(line for axes in figure.axes for line in of_axes(axes))
        if title == "gelu: agreement_plot":
            lines.extend(f"  {name} {mpl.rcParams[name]}" for name in STYLE)
        return figure

    image(drawn, title, title)
    return "\n".join(lines)


def test_whole_plots(make_table: Callable[..., Table]) -> None:
    found = []
    for operator, direction, count in (("gelu", Direction.FORWARD, 6), ("gemm", Direction.FORWARD, 51),
                                       ("point_to_point", Direction.ONCE, 8)):  # fmt: skip
        table = make_table(operator, direction, count)
        widths = np.where(table.workloads[:, 0] > np.median(table.workloads[:, 0]), 0.1, 0.3)
        off = np.geomspace(0.7, 2, count)
        points = Points.of(table, table.times_us * off, widths, "float16")
        found += [of_figure(f"{operator}: {plot.__name__}", lambda plot=plot, points=points: plot(points))
                  for plot in (agreement_plot, errors_plot, coverage_plot)]  # fmt: skip
    gelu = make_table("gelu", count=10)
    for ratio in (1.0, 1.01, 3.0, 30.0, 50.0, 500.0, 1e12):
        spread = replace(gelu, times_us=np.geomspace(100.0, 100.0 * ratio, 10))
        exact = Points.of(spread, spread.times_us, np.zeros(10), "float32")
        [axes] = agreement_plot(exact).axes
        found.append(f"times up to × {ratio:g}: {next(of_axes(axes, only='x'))}")
    found.append(of_figure("exact: errors_plot", lambda: errors_plot(exact)))
    for operator, direction in (("gemm", Direction.FORWARD), ("point_to_point", Direction.ONCE)):
        for count in (50, 51):
            table = make_table(operator, direction, count)
            if table.layouts:
                table.workloads[:, 1:] = (1, 2)
            points = Points.of(table, table.times_us, np.zeros(count), "float16")
            for plot in (agreement_plot, coverage_plot):
                lines = [line for line in plot(points).axes[0].lines if len(line.get_xdata()) == count]
                found.append(
                    f"{count} rows of {operator}: bitmaps {[bool(line.get_rasterized()) for line in lines]}"
                )
    names, errors = ["one", "two", "three"], [(0.01, None), (0.02, 0.05), (float("inf"), None)]
    found.append(of_figure("overview", lambda: overview_plot(names, errors)))
    found.append(of_figure("overview of none", lambda: overview_plot(["one"], [(0.0, None)])))
    for largest in (1.0005, *np.geomspace(1.001, 1.1, 12), *np.geomspace(1.12, 3e4, 40)):
        ticks = ratio_ticks(float(largest))
        found.append(f"ticks to {largest:.4g}: {short(ticks)} {[error_tick(one) for one in ticks]}")
    printed = "\n".join(found) + "\n"
    if "WRITE_WHOLE_PLOTS" in os.environ:
        TEXTS.write_text(printed, encoding="utf-8")
    assert printed == TEXTS.read_text(encoding="utf-8")
