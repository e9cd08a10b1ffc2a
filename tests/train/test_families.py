"""Operators of one law share their rows; which they are, and when own rows leave something open."""

from collections.abc import Callable

import numpy as np
import pytest

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.dataset import Array, Table
from kernelcast.train.families import leaves_open, pooled, relatives
from kernelcast.train.selection import select

FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE


def empty(operator: str, direction: Direction) -> Table:
    features = len(OPERATORS[operator].features)
    return Table(
        operator=operator, direction=direction, workloads=np.ones((1, features)), times_us=np.ones(1)
    )


EVERYTHING = [empty(name, direction) for name, op in OPERATORS.items() for direction in op.directions]


def family(operator: str, direction: Direction) -> set[str]:
    found = relatives(empty(operator, direction), EVERYTHING)
    assert {table.direction for table in found} <= {direction}
    return {table.operator for table in found}


def test_families() -> None:
    linears = {name for name in OPERATORS if name.endswith("_linear")}
    assert family("attention_output_linear", FORWARD) == linears - {"attention_output_linear"}
    assert family("qkv_linear", BACKWARD) == linears - {"qkv_linear"}
    assert family("attention_scores", BACKWARD) == {"attention_values"}
    assert family("optimizer_last_stage", ONCE) == {"optimizer_first_stage", "optimizer_middle_stage"}
    assert family("dp_all_gather", ONCE) == {"mp_all_gather"}
    assert family("mp_all_reduce", ONCE) == {"dp_all_reduce"}
    for alone, direction in (
        ("gelu", FORWARD),
        ("layer_norm", BACKWARD),
        ("pp_p2p", ONCE),
        ("rope", FORWARD),
    ):
        assert family(alone, direction) == set()


def gemm(operator: str, workloads: Array) -> Table:
    times_us = 20 + 2e-5 * workloads.prod(axis=1)
    return Table(operator=operator, direction=FORWARD, workloads=workloads, times_us=times_us)


def test_pooled_rows(make_table: Callable[..., Table]) -> None:
    own, other = make_table("qkv_linear", count=8), make_table("mlp_up_linear", count=9)
    together = pooled(own, [other])
    assert (together.operator, len(together)) == ("qkv_linear", 17)
    assert together.times_us.tolist() == [*own.times_us, *other.times_us]


def test_what_only_moved_together_is_left_open() -> None:
    sizes = np.array([64.0, 128, 256, 512])
    square = gemm("attention_output_linear", np.array([[m, d, d] for m in sizes for d in sizes]))
    free = gemm("mlp_up_linear", np.array([[m, k, n] for m in sizes for k in sizes for n in sizes]))
    assert leaves_open(square, [free])
    assert not leaves_open(free, [square])
    assert not leaves_open(square, [square])
    assert not leaves_open(square, [])


def test_lengths_of_queries_and_keys_always_move_together() -> None:
    rows = np.array(
        [[b, length, h, length] for b in (4.0, 8) for length in (64.0, 128, 512) for h in (32.0, 64)]
    )
    scores = Table(
        operator="attention_scores", direction=FORWARD, workloads=rows, times_us=np.ones(len(rows))
    )
    values = Table(
        operator="attention_values",
        direction=FORWARD,
        workloads=rows[:, [0, 1, 3, 2]],
        times_us=np.ones(len(rows)),
    )
    assert not leaves_open(scores, [values])


def test_a_thinly_sampled_operator_answers_by_its_family() -> None:
    """Sampled where K = N only, a time that follows N alone looks like one that follows K."""

    def times_us(workloads: Array) -> Array:
        m, k, n = workloads.T
        return np.asarray(5 + 1e-6 * m * n * np.sqrt(k) * 20)

    sizes = np.array([256.0, 512, 1024, 2048, 4096])
    square = np.array([[m, d, d] for m in sizes for d in sizes])
    free = np.array([[m, k, n] for m in sizes for k in sizes for n in sizes])
    thin = Table(
        operator="attention_output_linear", direction=FORWARD, workloads=square, times_us=times_us(square)
    )
    other = Table(operator="mlp_up_linear", direction=FORWARD, workloads=free, times_us=times_us(free))
    asked = np.array([[2048.0, 512, 4096], [4096, 256, 2048]])
    alone, together = select(thin, 20), select(thin, 20, [other])
    assert together.relatives == ("mlp_up_linear",)
    assert alone.relatives == ()
    errors = [np.abs(s.regressor.predict_us(asked) / times_us(asked) - 1).max() for s in (alone, together)]
    assert errors[1] < 0.1 < errors[0]


@pytest.mark.parametrize("operator", ["qkv_linear", "gelu"])
def test_without_relatives_nothing_is_pooled(make_table: Callable[..., Table], operator: str) -> None:
    selected = select(make_table(operator, count=12), 20)
    assert not selected.regressor.candidate.pooled
