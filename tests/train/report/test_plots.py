"""The plots: well-formed SVG, every row in them, the same bytes for the same rows, whatever was measured."""

import base64
import math
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.views.formatting import percent
from kernelcast.train.dataset import Table
from kernelcast.train.fit import Trained
from kernelcast.train.report.figures import figures
from kernelcast.train.report.plots import (
    Points,
    agreement_plot,
    coverage_plot,
    errors_plot,
    image,
    overview_plot,
    ratio_ticks,
    regressor_plots,
    varying,
)

MakeTable = Callable[..., Table]
PLOTS = (agreement_plot, errors_plot, coverage_plot)


def points(table: Table, off: object = 1.05) -> Points:
    widths = np.where(table.workloads[:, 0] > np.median(table.workloads[:, 0]), 0.1, 0.3)
    return Points.of(table, table.times_us * np.asarray(off), widths, "float16")


def drawn(draw: Callable[[], Figure]) -> str:
    """The SVG of a plot, with numbers everywhere."""
    found = re.search(r'base64,([^"]*)"', image(draw, "title", "description"))
    assert found is not None
    svg = base64.b64decode(found[1]).decode()
    assert not re.search(r"\b(nan|inf)\b", svg)
    return svg


def texts(draw: Callable[[], Figure]) -> set[str]:
    root = ElementTree.fromstring(drawn(draw))
    return {"".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")}


def places(figure: Figure) -> int:
    """How many points there are."""
    return sum(len(line.get_xydata()) for line in figure.axes[0].lines if line.get_marker() != "None")


def test_every_row_is_a_point(make_table: MakeTable) -> None:
    table = make_table("gelu", count=40)
    few = points(table, np.exp(np.random.default_rng(1).uniform(-1, 1, 40)))
    assert places(agreement_plot(few)) == places(errors_plot(few)) == 40
    many = points(make_table("gelu", count=7000))
    assert len(drawn(lambda: agreement_plot(many))) < 60_000


def test_coverage_marks_the_range_of_every_feature_that_varies(make_table: MakeTable) -> None:
    table = make_table("batched_gemm", count=30)
    workloads = table.workloads.copy()
    workloads[:, 3] = workloads[:, 1]  # as many keys as queries
    same = Points.of(
        Table(
            operator=table.operator,
            direction=table.direction,
            workloads=workloads,
            times_us=table.times_us,
        ),
        table.times_us,
        np.zeros(30),
        "float32",
    )
    assert varying(same) == [0, 1, 2]
    same.table.workloads[:, 1] = 64.0
    assert varying(same) == [0, 2, 3]
    same.table.workloads[:, 1] = same.table.workloads[:, 3]
    labels = texts(lambda: coverage_plot(same))
    assert {"batch", "m", "k"} <= labels
    assert "n" not in labels
    for column in (0, 1, 2):
        for end in (workloads[:, column].min(), workloads[:, column].max()):
            assert f"{end:g}" in labels


@pytest.mark.parametrize("constant", [(0, 1), (0, 1, 2)])
def test_features_that_never_vary_need_no_plot_of_their_own(
    make_table: MakeTable, constant: tuple[int, ...]
) -> None:
    table = make_table("gelu", count=10)
    table.workloads[:, constant] = 4
    assert drawn(lambda: coverage_plot(points(table)))


def test_exact_predictions_can_be_drawn(make_table: MakeTable) -> None:
    table = make_table("adam", Direction.ONCE, 10)
    table.workloads[0, 1] = 0  # a stage without a layer
    exact = Points.of(table, table.times_us.copy(), np.zeros(10), "float32")
    for plot in PLOTS:
        assert drawn(lambda plot=plot: plot(exact))


ROWS = st.lists(
    st.tuples(*[st.integers(0, 2**40)] * 3, st.floats(1e-3, 1e10), st.floats(-5, 5)), min_size=8, max_size=12
)


@settings(max_examples=6, deadline=None)
@given(ROWS)
def test_whatever_was_measured_can_be_drawn(rows: list[tuple[float, ...]]) -> None:
    values = np.array(rows)
    table = Table(
        operator="gelu", direction=Direction.FORWARD, workloads=values[:, :3], times_us=values[:, 3]
    )
    found = Points.of(table, table.times_us * np.exp(values[:, 4]), np.abs(values[:, 4]), "float16")
    for plot in PLOTS:
        assert drawn(lambda plot=plot: plot(found))


def test_the_overview_names_every_regressor() -> None:
    names = [f"operator_{number}, forward" for number in range(30)]
    errors = [(0.001 * (number + 1), 0.05 if number % 2 else None) for number in range(30)]
    errors = [*errors[:-1], (float("inf"), None)]
    assert set(names) <= texts(lambda: overview_plot(names, errors))
    assert places(overview_plot(names, errors)) == 29 + 14


def test_a_dot_grows_with_the_workloads_at_its_place(make_table: MakeTable) -> None:
    table = make_table("gelu", count=5)
    table.workloads[:] = [[1, 8, 16], [1, 8, 16], [1, 8, 16], [1, 8, 16], [1, 16, 32]]
    [dots] = coverage_plot(points(table)).axes[0].collections
    assert sorted(dots.get_sizes()) == pytest.approx([4 + 30 / 2, 4 + 30])


def test_rows_without_a_prediction_are_counted(trained: Trained) -> None:
    gelu = next(one for one in figures(trained).operators if one.entry.operator == "gelu")
    assert gelu.selected is not None
    assert not any("not shown" in str(one) for one in regressor_plots(gelu))
    held_out_us = gelu.selected.held_out_us.copy()
    held_out_us[:2] = (np.nan, np.inf)
    agreement, errors, _ = map(
        str, regressor_plots(replace(gelu, selected=replace(gelu.selected, held_out_us=held_out_us)))
    )
    assert "with the 90 % band. 2 rows whose prediction is not a number are not shown." in agreement
    assert "22 held-out rows" in agreement
    worst = np.abs(held_out_us[2:] / gelu.selected.table.times_us[2:] - 1).max()
    assert f"the largest error is {percent(float(worst))}" in errors
    assert list(regressor_plots(replace(gelu, selected=None))) == []


@given(st.floats(1.0011, 1e5))
def test_errors_have_ticks_on_both_sides_of_none(largest: float) -> None:
    ticks = ratio_ticks(largest)
    middle = len(ticks) // 2
    assert len(ticks) in (3, 5)
    assert ticks[middle] == 1
    assert ticks == sorted(ticks)
    assert ticks[-1] <= largest
    # As far apart on a logarithmic axis below as above, but for what percent make of it.
    for below, above in zip(ticks[:middle], reversed(ticks), strict=False):
        assert math.log(above) == pytest.approx(-math.log(below), rel=0.25)


def points_of(table: Table, held_out_us: object = None, dtype: str = "float16") -> Points:
    predicted = table.times_us if held_out_us is None else np.asarray(held_out_us, dtype=np.float64)
    return Points.of(table, predicted, np.full(len(table), 0.1), dtype)


def test_sizes_are_flops_or_bytes(make_table: MakeTable) -> None:
    linear, gelu = make_table("gemm"), make_table("gelu")
    counted = points_of(linear)
    assert counted.size_unit == "FLOP"
    assert np.array_equal(counted.sizes, 2 * linear.workloads.prod(axis=1))
    for dtype, element_bytes in (("float32", 4), ("float16", 2), ("of no known width", 1)):
        counted = points_of(gelu, dtype=dtype)
        assert counted.size_unit == "B"
        moved = [
            OPERATORS["gelu"].moved_bytes(Direction.FORWARD, vector, element_bytes)
            for vector in gelu.workloads.tolist()
        ]
        assert counted.sizes.tolist() == moved


def test_every_layout_of_a_collective_is_a_series(make_table: MakeTable) -> None:
    table = make_table("point_to_point", Direction.ONCE, 30)
    series = points(table).series
    layouts = {(int(nodes), int(gpus)) for nodes, gpus in table.workloads[:, 1:]}
    assert list(series) == [f"{nodes} × {gpus}" for nodes, gpus in sorted(layouts)]
    assert sum(int(rows.sum()) for rows in series.values()) == 30
    assert list(points(make_table("gelu")).series) == [""]


def test_predictions_that_are_no_number_are_left_out(make_table: MakeTable) -> None:
    table = make_table(count=5)
    drawn = points_of(table, [np.inf, 2.0, np.nan, 0.0, 3.0])
    assert drawn.held_out_us.tolist() == [2.0, 3.0]
    assert len(drawn.table) == len(drawn.sizes) == len(drawn.half_widths) == 2
