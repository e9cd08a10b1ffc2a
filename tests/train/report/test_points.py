"""The rows that are drawn."""

from collections.abc import Callable

import numpy as np

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.dataset import Table
from kernelcast.train.report.points import Points

MakeTable = Callable[..., Table]


def points(table: Table, held_out_us: object = None, dtype: str = "float16") -> Points:
    predicted = table.times_us if held_out_us is None else np.asarray(held_out_us, dtype=np.float64)
    return Points.of(table, predicted, np.full(len(table), 0.1), dtype)


def test_sizes_are_flops_or_bytes(make_table: MakeTable) -> None:
    linear, gelu = make_table("gemm"), make_table("gelu")
    counted = points(linear)
    assert counted.size_unit == "FLOP"
    assert np.array_equal(counted.sizes, 2 * linear.workloads.prod(axis=1))
    for dtype, element_bytes in (("float32", 4), ("float16", 2)):
        counted = points(gelu, dtype=dtype)
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
    drawn = points(table, [np.inf, 2.0, np.nan, 0.0, 3.0])
    assert drawn.held_out_us.tolist() == [2.0, 3.0]
    assert len(drawn) == len(drawn.workloads) == len(drawn.sizes) == len(drawn.half_widths) == 2
