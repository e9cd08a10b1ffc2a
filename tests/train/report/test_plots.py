"""The plots: well-formed SVG, every row in them, the reader's colours, the same bytes for the same rows."""

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Table
from kernelcast.train.report.plots import agreement_svg, coverage_svg, errors_svg, overview_svg, varying
from kernelcast.train.report.points import Points

MakeTable = Callable[..., Table]
SVG = "{http://www.w3.org/2000/svg}"


def points(table: Table, off: float = 1.05) -> Points:
    widths = np.where(table.workloads[:, 0] > np.median(table.workloads[:, 0]), 0.1, 0.3)
    return Points.of(table, table.times_us * off, widths, "float16")


def texts(svg: str) -> set[str]:
    return {text for element in ElementTree.fromstring(svg).iter(f"{SVG}text") if (text := element.text)}


def drawn(svg: str, marker_group: str = "PathCollection") -> int:
    """Points drawn as shapes."""
    groups = [
        g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("id", "").startswith(marker_group)
    ]
    return sum(len(list(group.iter(f"{SVG}use"))) for group in groups)


@pytest.mark.parametrize("plot", [agreement_svg, errors_svg, coverage_svg])
def test_a_plot_is_one_themed_svg(make_table: MakeTable, plot: Callable[[Points], str]) -> None:
    svg = plot(points(make_table("gelu", count=30)))
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    assert plot(points(make_table("gelu", count=30))) == svg
    assert "prefers-color-scheme:dark" in svg
    assert "var(--ink)" in svg
    assert not re.search(r"#0[12]0[12]0[12]", svg)
    assert "http" not in svg.replace("http://www.w3.org/", "")
    assert "\n" not in svg


def test_every_row_is_a_point(make_table: MakeTable) -> None:
    few = points(make_table("gelu", count=40))
    assert drawn(agreement_svg(few)) == drawn(errors_svg(few)) == 40
    assert "<image" not in agreement_svg(few)
    many = points(make_table("gelu", count=700))
    for svg in (agreement_svg(many), errors_svg(many), coverage_svg(many)):
        assert "<image" in svg
        assert len(svg) < 200_000


def test_errors_are_labelled_as_such(make_table: MakeTable) -> None:
    labels = texts(errors_svg(points(make_table("gelu"), off=1.3)))
    assert {"0", "+20 %", "−20 %", "data moved", "predicted against measured"} <= labels
    assert "floating-point operations" in texts(errors_svg(points(make_table("mlp_up_linear"))))


def test_layouts_are_named(make_table: MakeTable) -> None:
    found = points(make_table("pp_p2p", Direction.ONCE, 40))
    for svg in (agreement_svg(found), coverage_svg(found)):
        assert set(found.series) <= texts(svg)


def test_coverage_marks_the_range_of_every_feature_that_varies(make_table: MakeTable) -> None:
    table = make_table("attention_scores", count=30)
    workloads = table.workloads.copy()
    workloads[:, 3] = workloads[:, 1]  # l_key is l_query, as in self-attention
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
    labels = texts(coverage_svg(same))
    assert {"batch_heads", "l_query", "head_size"} <= labels
    assert "l_key" not in labels
    for column in (0, 1, 2):
        for end in (workloads[:, column].min(), workloads[:, column].max()):
            assert f"{end:g}" in labels


@pytest.mark.parametrize("constant", [(0, 1), (0, 1, 2)])
def test_features_that_never_vary_need_no_plot_of_their_own(
    make_table: MakeTable, constant: tuple[int, ...]
) -> None:
    table = make_table("gelu", count=10)
    table.workloads[:, constant] = 4
    svg = coverage_svg(points(table))
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"


def test_exact_predictions_can_be_drawn(make_table: MakeTable) -> None:
    table = make_table("optimizer_first_stage", Direction.ONCE, 10)
    table.workloads[0, 1] = 0  # a stage without a layer
    exact = Points.of(table, table.times_us.copy(), np.zeros(10), "float32")
    for plot in (agreement_svg, errors_svg, coverage_svg):
        assert "nan" not in plot(exact).lower()


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
    for plot in (agreement_svg, errors_svg, coverage_svg):
        svg = plot(found)
        assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
        assert "nan" not in svg.lower()


def test_the_overview_names_every_regressor() -> None:
    names = [f"operator_{number}, forward" for number in range(30)]
    errors = [(0.001 * (number + 1), 0.05 if number % 2 else None) for number in range(30)]
    svg, (_, height) = overview_svg(names, [*errors[:-1], (float("inf"), None)])
    assert set(names) <= texts(svg)
    assert height > 5
    assert drawn(svg) == 29 + 14
