"""The plots: well-formed SVG, every row in them, the same bytes for the same rows, whatever was measured."""

import base64
import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from kernelcast.runtime.operators import OPERATORS, Direction
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


@pytest.mark.parametrize("plot", PLOTS)
def test_a_plot_is_always_the_same(make_table: MakeTable, plot: Callable[[Points], Figure]) -> None:
    found = points(make_table("gelu", count=30))
    assert drawn(lambda: plot(found)) == drawn(lambda: plot(points(make_table("gelu", count=30))))


def test_every_row_is_a_point(make_table: MakeTable) -> None:
    table = make_table("gelu", count=40)
    few = points(table, np.exp(np.random.default_rng(1).uniform(-1, 1, 40)))
    assert places(agreement_plot(few)) == places(errors_plot(few)) == 40
    many = points(make_table("gelu", count=7000))
    assert len(drawn(lambda: agreement_plot(many))) < 60_000


def test_errors_are_labelled_as_such(make_table: MakeTable) -> None:
    labels = texts(lambda: errors_plot(points(make_table("gelu"), off=1.3)))
    assert {"0", "+20 %", "−20 %", "data moved", "predicted against measured"} <= labels
    assert "floating-point operations" in texts(lambda: errors_plot(points(make_table("gemm"))))


def test_layouts_are_named(make_table: MakeTable) -> None:
    found = points(make_table("point_to_point", Direction.ONCE, 40))
    for plot in (agreement_plot, coverage_plot):
        assert set(found.series) <= texts(lambda plot=plot: plot(found))


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


@pytest.mark.parametrize("ratio", [1.01, 3.0, 50.0, 1e12])
def test_axes_have_a_few_ticks(make_table: MakeTable, ratio: float) -> None:
    table = make_table("gelu", count=10)
    spread = Table(
        operator=table.operator,
        direction=table.direction,
        workloads=table.workloads,
        times_us=np.geomspace(100.0, 100.0 * ratio, 10),
    )
    exact = Points.of(spread, spread.times_us, np.zeros(10), "float32")
    times = [text for text in texts(lambda: agreement_plot(exact)) if re.fullmatch(r"[\d.]+ \w+", text)]
    assert 2 <= len(times) <= 8


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


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0"),
        (1.05, "+5 %"),
        (0.8, "−20 %"),
        (1 / 1.5, "−33 %"),
        (1.001, "+0.1 %"),
        (2, "× 2"),
        (0.1, "÷ 10"),
    ],
)
def test_errors_on_an_axis(ratio: float, text: str) -> None:
    assert error_tick(ratio) == text


def points_of(table: Table, held_out_us: object = None, dtype: str = "float16") -> Points:
    predicted = table.times_us if held_out_us is None else np.asarray(held_out_us, dtype=np.float64)
    return Points.of(table, predicted, np.full(len(table), 0.1), dtype)


def test_sizes_are_flops_or_bytes(make_table: MakeTable) -> None:
    linear, gelu = make_table("gemm"), make_table("gelu")
    counted = points_of(linear)
    assert counted.size_unit == "FLOP"
    assert np.array_equal(counted.sizes, 2 * linear.workloads.prod(axis=1))
    for dtype, element_bytes in (("float32", 4), ("float16", 2)):
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
