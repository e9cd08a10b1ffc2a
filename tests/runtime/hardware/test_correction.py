"""Descriptions corrected by measured rows: the factors are found again, and extend to other layouts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.hardware.collectives import Correction, LevelScale, Setting, collective_us, least_us
from kernelcast.runtime.hardware.correction import corrected, rows_by_layout
from kernelcast.runtime.hardware.fabric import fabric_named

FABRIC = fabric_named("h100-3200g")
SIZES = np.geomspace(2.0**15, 2.0**33, 19)


def rows(
    operator: str, correction: Correction, *layouts: tuple[int, int]
) -> list[tuple[int, int, float, float]]:
    """Rows that a fabric with `correction` would have."""
    return [
        (nodes, gpus, size, time)
        for nodes, gpus in layouts
        for size, time in zip(
            SIZES.tolist(),
            collective_us(
                operator,
                SIZES,
                Setting(fabric=FABRIC, nodes=nodes, gpus_per_node=gpus),
                correction=correction,
            ).tolist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_factors_are_found_again(operator: str) -> None:
    truth = Correction(
        inside=LevelScale(latency=2.0, per_byte=1.5), between=LevelScale(latency=0.5, per_byte=1.25)
    )
    found = corrected(FABRIC, operator, rows_by_layout(rows(operator, truth, (1, 4), (1, 8), (4, 1))))
    for level, true in ((found.correction.inside, truth.inside), (found.correction.between, truth.between)):
        assert level.latency == pytest.approx(true.latency, rel=0.1)
        assert level.per_byte == pytest.approx(true.per_byte, rel=0.1)
    setting = Setting(fabric=FABRIC, nodes=4, gpus_per_node=8)
    expected = collective_us(operator, SIZES, setting, correction=truth)
    assert found.time_us(SIZES, setting) == pytest.approx(expected, rel=0.1)


def test_measured_rows_answer_for_themselves() -> None:
    measured = [(1, 8, size, 3.0 * time) for _, _, size, time in rows("all_reduce", Correction(), (1, 8))]
    found = corrected(FABRIC, "all_reduce", rows_by_layout(measured))
    setting = Setting(fabric=FABRIC, nodes=1, gpus_per_node=8)
    assert found.time_us(SIZES, setting) == pytest.approx([row[3] for row in measured])


def test_the_nearest_layout_is_one_of_the_same_kind() -> None:
    found = corrected(
        FABRIC, "all_reduce", rows_by_layout(rows("all_reduce", Correction(), (1, 2), (1, 8), (4, 1), (2, 4)))
    )
    nearest = {}
    for asked in [(1, 4), (1, 7), (16, 1), (10, 8)]:
        one = found.nearest(*asked)
        nearest[asked] = one and one.layout
    assert nearest == {(1, 4): (1, 2), (1, 7): (1, 8), (16, 1): (4, 1), (10, 8): (2, 4)}
    alone = corrected(FABRIC, "all_reduce", rows_by_layout(rows("all_reduce", Correction(), (1, 2))))
    assert alone.nearest(10, 8) is None


def test_rows_that_the_fabric_cannot_have_are_left_out() -> None:
    measured = rows_by_layout([(1, 16, 1e6, 1.0), (1, 1, 1e6, 1.0), (1, 2, 1e6, 50.0)])
    assert [one.layout for one in corrected(FABRIC, "all_reduce", measured).rows] == [(1, 2)]
    no_network = replace(FABRIC, between=None)
    assert corrected(no_network, "all_reduce", rows_by_layout([(2, 1, 1e6, 1.0)])).rows == ()


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 8), st.floats(1, 1e12), st.floats(1e-3, 1e9)), max_size=12
    ),
    st.integers(1, 64),
    st.integers(2, 8),
    st.floats(1, 1e15),
)
def test_no_rows_bring_a_time_below_the_wire(
    measured: list[tuple[int, int, float, float]], nodes: int, gpus: int, size: float
) -> None:
    found = corrected(FABRIC, "all_reduce", rows_by_layout(measured))
    setting = Setting(fabric=FABRIC, nodes=nodes, gpus_per_node=gpus)
    time_us = found.time_us([size], setting)
    assert np.isfinite(time_us).all()
    assert (time_us >= least_us("all_reduce", [size], setting)).all()


def test_equal_sizes_are_one_row() -> None:
    [one] = rows_by_layout([(1, 2, 8.0, 1.0), (1, 2, 8.0, 3.0), (1, 2, 8.0, 2.0), (1, 2, 4.0, 1.0)])
    assert one.message_bytes.tolist() == [4.0, 8.0]
    assert one.time_us.tolist() == [1.0, 2.0]
