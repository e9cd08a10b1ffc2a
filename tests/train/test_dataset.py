"""Samples become one table per operator and direction, whatever their order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.operators import Direction
from kernelcast.train.dataset import Row, Table, tables
from kernelcast.train.notes import Note, conflict_notes

GELU = Row(operator="gelu", direction=Direction.FORWARD, vector=(1, 2, 3), time_us=10.0)


def test_operators_and_directions_get_tables_of_their_own() -> None:
    rows = [
        GELU,
        replace(GELU, direction=Direction.BACKWARD, time_us=20.0),
        replace(GELU, vector=(1, 2, 4), time_us=11.0),
        replace(GELU, operator="embedding", time_us=5.0),
    ]
    found = tables(rows, statistic="quiet")
    keys = [(table.operator, table.direction, len(table)) for table in found]
    assert keys == [
        ("embedding", Direction.FORWARD, 1),
        ("gelu", Direction.BACKWARD, 1),
        ("gelu", Direction.FORWARD, 2),
    ]
    assert found[2].workloads.tolist() == [[1, 2, 3], [1, 2, 4]]
    assert found[2].workloads.dtype == found[2].times_us.dtype == np.float64
    assert found[2].times_us.tolist() == [10, 11]
    assert tables([], statistic="quiet") == []


@pytest.mark.parametrize(("statistic", "time_us"), [("quiet", 9.0), ("middle_five", 10.0)])
def test_a_repeated_workload_counts_once(statistic: str, time_us: float) -> None:
    rows = [replace(GELU, time_us=t) for t in (10.0, 12.0, 9.0)]
    [table] = tables(rows, statistic=statistic)
    assert table.workloads.tolist() == [[1, 2, 3]]
    assert table.times_us.tolist() == [time_us]
    assert list(conflict_notes(rows)) == []


@pytest.mark.parametrize(
    ("times_us", "quiet_us", "middle_five_us"),
    [((9.0, 10.0, 50.0), 10.0, 10.0), ((1.0, 10.0, 11.0), 10.0, 10.0), ((10.0, 50.0), 10.0, 30.0)],
)
def test_times_that_contradict_each_other_are_named_and_the_middle_counts(
    times_us: tuple[float, ...], quiet_us: float, middle_five_us: float
) -> None:
    rows = [replace(GELU, time_us=t) for t in times_us] + [replace(GELU, vector=(1, 2, 9))] * 2
    for statistic, expected in (("quiet", quiet_us), ("middle_five", middle_five_us)):
        [table] = tables(rows, statistic=statistic)
        assert table.times_us[0] == expected
    factor = f"{max(times_us) / min(times_us):.3g}"
    text = (
        f"1 workloads were measured several times with times up to {factor}× apart (worst: [1, 2, 3]); the median "
        "counts"
    )
    assert list(conflict_notes(rows)) == [Note(operator="gelu", direction=Direction.FORWARD, text=text)]


@pytest.mark.parametrize("statistic", ["quiet", "middle_five"])
def test_of_a_collective_measured_several_times_the_middle_counts(statistic: str) -> None:
    """Its quiet time is a mean: the lowest of several would be the luckiest."""
    exchange = Row(operator="all_reduce", direction=Direction.ONCE, vector=(64, 1, 2), time_us=10.0)
    [table] = tables([replace(exchange, time_us=t) for t in (9.0, 12.0, 10.0)], statistic=statistic)
    assert table.times_us.tolist() == [10]


def test_the_median_of_two_is_their_mean() -> None:
    [table] = tables([GELU, replace(GELU, time_us=13.0)], statistic="middle_five")
    assert table.times_us.tolist() == [11.5]


def test_roles_of_one_workload_are_one_row_with_times_per_role() -> None:
    square = Row(operator="gemm", direction=Direction.FORWARD, vector=(8, 8, 8), time_us=10.0, role="qkv")
    [table] = tables(
        [
            square,
            replace(square, role="mlp_up", time_us=11.0),
            replace(square, vector=(8, 8, 9), time_us=12.0),
        ],
        statistic="middle_five",
    )
    assert table.times_us.tolist() == [10.5, 12]
    assert list(table.role_times_us) == ["mlp_up", "qkv"]
    assert table.role_times_us["qkv"].tolist() == [10, 12]
    assert table.role_times_us["mlp_up"] == pytest.approx([11, np.nan], nan_ok=True)
    assert table.part(np.array([1])).role_times_us["qkv"].tolist() == [12]


rows = st.builds(
    Row,
    operator=st.sampled_from(["gelu", "layer_norm"]),
    direction=st.sampled_from([Direction.FORWARD, Direction.BACKWARD]),
    vector=st.tuples(*[st.integers(1, 3)] * 3),
    time_us=st.floats(0.001, 1e9),
)


def plain(found: list[Table]) -> list[object]:
    return [(t.operator, t.direction, t.workloads.tolist(), t.times_us.tolist()) for t in found]


@given(
    given_rows=st.lists(rows, max_size=30),
    random=st.randoms(),
    statistic=st.sampled_from(["quiet", "middle_five"]),
)
def test_the_order_of_rows_does_not_matter(given_rows: list[Row], random: object, statistic: str) -> None:
    shuffled = list(given_rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = tables(given_rows, statistic=statistic)
    assert plain(tables(shuffled, statistic=statistic)) == plain(found)
    assert sum(map(len, found)) == len({(r.operator, r.direction, r.vector) for r in given_rows})
    for table in found:
        times = [
            r.time_us for r in given_rows if (r.operator, r.direction) == (table.operator, table.direction)
        ]
        assert min(times) <= table.times_us.min() <= table.times_us.max() <= max(times)
