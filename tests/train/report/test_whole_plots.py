"""All that stands in a plot, to the digit: `whole_plots.txt`, which WRITE_WHOLE_PLOTS=1 pytest THIS_FILE writes again.

Not pixels, which depend on fonts and versions: sizes, limits, ticks, texts, and every line and area with its values.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

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
from tests.drawn import of_axes, short

TEXTS = Path(__file__).with_name("whole_plots.txt")
STYLE = ("savefig.transparent", "svg.fonttype", "svg.hashsalt", "text.parse_math", "axes.axisbelow", "grid.color",
         "grid.linewidth", "axes.grid", "font.size", "text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color",
         "ytick.color")  # fmt: skip


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
