"""The plots: well-formed SVG, every row in them, everything inside the drawing, the same bytes for the same rows."""

import re
from collections.abc import Callable, Iterable
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.views.page import Markup, element
from kernelcast.train.dataset import Table
from kernelcast.train.report.plots import (
    HEIGHT,
    WIDTH,
    agreement_plot,
    coverage_plot,
    errors_plot,
    overview_plot,
    varying,
)
from kernelcast.train.report.points import Points

MakeTable = Callable[..., Table]
PLOTS = (agreement_plot, errors_plot, coverage_plot)


def points(table: Table, off: object = 1.05) -> Points:
    widths = np.where(table.workloads[:, 0] > np.median(table.workloads[:, 0]), 0.1, 0.3)
    return Points.of(table, table.times_us * np.asarray(off), widths, "float16")


def drawn(shapes: Iterable[Markup]) -> ElementTree.Element:
    return ElementTree.fromstring(element("svg", *shapes))


def texts(shapes: Iterable[Markup]) -> set[str]:
    return {text for one in drawn(shapes).iter("text") if (text := one.text)}


def places(shapes: Iterable[Markup]) -> list[tuple[float, float]]:
    """Where the points of the rows are."""
    paths = [one.attrib["d"] for one in drawn(shapes).iter("path") if one.get("class") == "points"]
    return [(float(x), float(y)) for path in paths for x, y in re.findall(r"M([-\d.]+) ([-\d.]+)", path)]


def check(shapes: Iterable[Markup]) -> None:
    """Numbers everywhere, and no point outside the drawing."""
    found = list(shapes)
    assert not re.search(r"nan|inf\b", " ".join(found))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places(found))


@pytest.mark.parametrize("plot", PLOTS)
def test_a_plot_is_always_the_same(make_table: MakeTable, plot: Callable[[Points], Iterable[Markup]]) -> None:
    found = list(plot(points(make_table("gelu", count=30))))
    check(found)
    assert list(plot(points(make_table("gelu", count=30)))) == found


def test_every_row_is_a_point(make_table: MakeTable) -> None:
    table = make_table("gelu", count=40)
    few = points(table, np.exp(np.random.default_rng(1).uniform(-1, 1, 40)))
    assert len(places(agreement_plot(few))) == len(places(errors_plot(few))) == 40
    assert sum(len(text) for text in agreement_plot(points(make_table("gelu", count=700)))) < 20_000


def test_errors_are_labelled_as_such(make_table: MakeTable) -> None:
    labels = texts(errors_plot(points(make_table("gelu"), off=1.3)))
    assert {"0", "+20 %", "−20 %", "data moved", "predicted against measured"} <= labels
    assert "floating-point operations" in texts(errors_plot(points(make_table("gemm"))))


def test_layouts_are_named(make_table: MakeTable) -> None:
    found = points(make_table("point_to_point", Direction.ONCE, 40))
    for shapes in (agreement_plot(found), coverage_plot(found)):
        assert set(found.series) <= texts(shapes)


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
    labels = texts(coverage_plot(same))
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
    check(coverage_plot(points(table)))


def test_exact_predictions_can_be_drawn(make_table: MakeTable) -> None:
    table = make_table("adam", Direction.ONCE, 10)
    table.workloads[0, 1] = 0  # a stage without a layer
    exact = Points.of(table, table.times_us.copy(), np.zeros(10), "float32")
    for plot in PLOTS:
        check(plot(exact))


ROWS = st.lists(
    st.tuples(*[st.integers(0, 2**40)] * 3, st.floats(1e-3, 1e10), st.floats(-5, 5)), min_size=8, max_size=12
)


@settings(max_examples=10, deadline=None)
@given(ROWS)
def test_whatever_was_measured_can_be_drawn(rows: list[tuple[float, ...]]) -> None:
    values = np.array(rows)
    table = Table(
        operator="gelu", direction=Direction.FORWARD, workloads=values[:, :3], times_us=values[:, 3]
    )
    found = Points.of(table, table.times_us * np.exp(values[:, 4]), np.abs(values[:, 4]), "float16")
    for plot in PLOTS:
        check(plot(found))


def test_the_overview_names_every_regressor() -> None:
    names = [f"operator_{number}, forward" for number in range(30)]
    errors = [(0.001 * (number + 1), 0.05 if number % 2 else None) for number in range(30)]
    shapes, height = overview_plot(names, [*errors[:-1], (float("inf"), None)])
    assert set(names) <= texts(shapes)
    assert height > 500
    assert len(list(drawn(shapes).iter("circle"))) == 29 + 14
