"""FLOPs and bytes by hand; workload vectors are in test_decomposition."""

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, Shape, operator

FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE


@pytest.mark.parametrize(
    ("name", "direction", "vector", "flops", "elements"),
    [
        ("qkv_linear", FORWARD, (2, 3, 5), 60, 6 + 15 + 10),
        ("qkv_linear", BACKWARD, (2, 3, 5), 120, 12 + 60 + 20),
        ("qkv_linear", FORWARD, (8192, 6144, 4608), 463_856_467_968, 50_331_648 + 28_311_552 + 37_748_736),
        ("attention_scores", FORWARD, (2, 3, 5, 7), 420, 30 + 70 + 42),
        ("attention_values", FORWARD, (2, 3, 7, 5), 420, 42 + 70 + 30),
        ("flash_attention", FORWARD, (2, 3, 5, 7), 2 * 2 * 9 * 5 * 7, 4 * 210),
        ("flash_attention", BACKWARD, (2, 3, 5, 7), 5 * 2 * 9 * 5 * 7, 8 * 210),
        ("residual_add", FORWARD, (2, 3, 5), 30, 90),
        ("layer_norm", FORWARD, (2, 3, 5), 240, 60),
        ("embedding", BACKWARD, (2, 7, 5), 10 + 35, 30 + 140),
        ("optimizer_first_stage", ONCE, (100, 3), 1400, 700),
        ("mp_all_reduce", ONCE, (100, 2, 4), 0, 200),
        ("mp_all_gather", ONCE, (100, 2, 4), 0, 800),
        ("mp_reduce_scatter", ONCE, (100, 2, 4), 0, 100),
        ("dp_all_gather", ONCE, (100, 2, 4), 0, 800),
        ("dp_reduce_scatter", ONCE, (100, 2, 4), 0, 100),
        ("pp_p2p", ONCE, (100, 2, 1), 0, 100),
    ],
)
def test_flops_and_bytes(
    name: str, direction: Direction, vector: tuple[int, ...], flops: float, elements: float
) -> None:
    assert operator(name).flops(direction, vector) == flops
    assert operator(name).moved_bytes(direction, vector, 2) == 2 * elements


def test_unknown_operators_and_wrong_vectors_are_named() -> None:
    with pytest.raises(UsageError, match=r"^operator 'rop' is unknown; known are embedding, "):
        operator("rop")
    with pytest.raises(
        UsageError, match=r"^qkv_linear: workload vector has 2 entries, expected \[m, k, n\]$"
    ):
        OPERATORS["qkv_linear"].flops(FORWARD, (1, 2))


def test_linears_share_their_features() -> None:
    linears = [row for name, row in OPERATORS.items() if name.endswith("_linear")]
    assert len(linears) == 6
    assert {tuple(row.features) for row in linears} == {("m", "k", "n")}


def test_both_groups_call_the_same_collectives() -> None:
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        rows = [OPERATORS[f"{group}_{collective}"] for group in ("tp", "dp")]
        assert {row.collective for row in rows} == {collective}
        assert rows[0].costs == rows[1].costs
        assert rows[0].features == rows[1].features
    # Sizes that do not divide: a shard is rounded up, what is scattered is whole.
    shape = Shape(
        micro_batch=1, sequence_length=3, hidden_size=5, tensor_parallel=2, nodes=1, gpus_per_node=2
    )
    assert OPERATORS["mp_all_gather"].workload(shape) == (8, 1, 2)
    assert OPERATORS["mp_reduce_scatter"].workload(shape) == (15, 1, 2)
