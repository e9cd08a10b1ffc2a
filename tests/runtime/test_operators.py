"""The table of operators: FLOPs and bytes by hand, directions, roles; workload vectors are in step/layers/."""

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, OperatorClass, operator, role_name

FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
INPUT, WEIGHT = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT


@pytest.mark.parametrize(
    ("name", "direction", "vector", "flops", "elements"),
    [
        ("gemm", FORWARD, (2, 3, 5), 60, 6 + 15 + 10),
        ("gemm", INPUT, (2, 3, 5), 60, 10 + 15 + 6),
        # The weight gradient is written, then read and accumulated.
        ("gemm", WEIGHT, (2, 3, 5), 60, 6 + 3 * 15 + 10),
        ("gemm", BACKWARD, (2, 3, 5), 120, 12 + 60 + 20),
        ("gemm", FORWARD, (8192, 6144, 4608), 463_856_467_968, 50_331_648 + 28_311_552 + 37_748_736),
        ("batched_gemm", FORWARD, (2, 3, 5, 7), 420, 30 + 70 + 42),
        ("batched_gemm", BACKWARD, (2, 3, 5, 7), 840, 60 + 140 + 84),
        ("grouped_gemm", FORWARD, (2, 3, 5, 7), 420, 30 + 70 + 42),
        ("grouped_gemm", INPUT, (2, 3, 5, 7), 420, 30 + 70 + 42),
        ("grouped_gemm", WEIGHT, (2, 3, 5, 7), 420, 30 + 3 * 70 + 42),
        # In bytes: both inputs are read in 8 bits, 16 bits come out, or are added to weight gradients.
        # Casts are calls of their own.
        ("gemm_float8_tensor", FORWARD, (2, 3, 5), 60, 6 + 15 + 2 * 10),
        ("gemm_float8_tensor", INPUT, (2, 3, 5), 60, 10 + 15 + 2 * 6),
        ("gemm_float8_block", WEIGHT, (2, 3, 5), 60, 6 + 10 + 6 * 15),
        ("grouped_gemm_float8_block", FORWARD, (2, 3, 5, 7), 420, 30 + 70 + 2 * 42),
        # 16 bits in, 8 bits out.
        ("float8_cast", FORWARD, (3, 5), 15, 15 + 15 / 2),
        # 4 tokens to 2 of 3 experts each: three products of 8 rows; input and sum, weights, 2 + 1 widths both ways.
        ("moe", FORWARD, (4, 8, 5, 7, 3), 6 * 8 * 5 * 7, 2 * 20 + 3 * 3 * 35 + 6 * 56 + 2 * 40),
        ("flash_attention", FORWARD, (2, 3, 5, 5, 7), 2 * 2 * 9 * 5 * 7, 4 * 210),
        ("flash_attention", BACKWARD, (2, 3, 5, 5, 7), 5 * 2 * 9 * 5 * 7, 8 * 210),
        # One key-value head for four: every query head attends, keys and values are fewer.
        ("flash_attention", FORWARD, (2, 3, 4, 1, 7), 2 * 2 * 9 * 4 * 7, 2 * 168 + 2 * 42),
        ("flash_attention", BACKWARD, (2, 3, 4, 1, 7), 5 * 2 * 9 * 4 * 7, 4 * 168 + 4 * 42),
        ("rope", FORWARD, (2, 3, 4, 1, 7), 3 * 168 + 3 * 42, 2 * 168 + 2 * 42),
        ("rope", BACKWARD, (2, 3, 4, 1, 7), 3 * 168 + 3 * 42, 2 * 168 + 2 * 42),
        ("residual_add", FORWARD, (2, 3, 5), 30, 90),
        ("layer_norm", FORWARD, (2, 3, 5), 240, 60),
        ("embedding", FORWARD, (2, 7, 5), 0, 20),
        ("embedding", BACKWARD, (2, 7, 5), 10 + 35, 30 + 140),
        ("all_reduce", ONCE, (100, 2, 4), 0, 200),
        ("all_gather", ONCE, (100, 2, 4), 0, 800),
        ("reduce_scatter", ONCE, (100, 2, 4), 0, 100),
        ("all_to_all", ONCE, (100, 2, 4), 0, 200),
        ("point_to_point", ONCE, (100, 2, 1), 0, 100),
        ("adam", ONCE, (100, 3), 1400, 700),
        ("gradient_clip", ONCE, (100,), 300, 300),
        ("gradient_zero", ONCE, (100,), 0, 100),
    ],
)
def test_flops_and_bytes(
    name: str, direction: Direction, vector: tuple[int, ...], flops: float, elements: float
) -> None:
    assert operator(name).flops(direction, vector) == flops
    assert operator(name).moved_bytes(direction, vector, 2) == 2 * elements


def test_adam_in_fp32_moves_28_bytes_per_parameter() -> None:
    # Parameter, gradient and two moments are read, all but the gradient written; layers move nothing.
    for layers in (0, 1, 12):
        assert operator("adam").moved_bytes(ONCE, (1000, layers), 4) == 28_000


def test_adam_beside_16_bit_moves_no_fewer_bytes() -> None:
    # Gradient 2, master and moments 4 each in and out, weight 2.
    assert operator("adam").least_bytes(ONCE, (1000, 3), 2) == 1000 * (2 + 2 * 12 + 2)
    assert operator("adam").least_bytes(ONCE, (1000, 3), 8) == 7 * 8_000
    assert operator("gradient_zero").least_bytes(ONCE, (1000,), 2) == 2_000


def test_the_least_bytes_of_experts_are_those_of_one() -> None:
    assert operator("moe").least_bytes(FORWARD, (4, 8, 5, 7, 3), 2) == 2 * (20 + 3 * 35)
    assert operator("grouped_gemm").least_bytes(WEIGHT, (2, 3, 5, 7), 2) == 2 * (30 + 70 + 42)
    assert operator("moe").is_on_request


def test_unknown_operators_and_wrong_vectors_are_named() -> None:
    with pytest.raises(UsageError, match=r"^operator 'rop' is unknown, nearest is rope$"):
        operator("rop")
    with pytest.raises(UsageError, match=r"^gemm: workload vector has 2 entries, expected \[m, k, n\]$"):
        OPERATORS["gemm"].flops(FORWARD, (1, 2))


def test_directions_have_times_of_their_own_and_sums_add_up() -> None:
    assert OPERATORS["gemm"].directions == (FORWARD, INPUT, WEIGHT)
    assert OPERATORS["gemm"].backward == (INPUT, WEIGHT)
    assert OPERATORS["qkv_split"].directions == OPERATORS["qkv_split"].backward == (BACKWARD,)
    assert [name for name, row in OPERATORS.items() if row.sums] == ["gemm"]
    vector = (2, 3, 5)
    for row in OPERATORS.values():
        for whole, parts in row.sums.items():
            assert row.flops(whole, vector) == sum(row.flops(part, vector) for part in parts)
            assert row.moved_bytes(whole, vector, 2) == sum(
                row.moved_bytes(part, vector, 2) for part in parts
            )


def test_passes_of_directions() -> None:
    assert {direction: direction.of_pass for direction in Direction} == {
        FORWARD: "forward",
        BACKWARD: "backward",
        INPUT: "backward",
        WEIGHT: "backward",
        ONCE: "once",
    }


def test_what_holds_for_every_row() -> None:
    for name, row in OPERATORS.items():
        assert row.name == name
        assert row.directions
        assert row.is_collective == (row.operator_class is OperatorClass.COMMUNICATION)
        assert row.is_collective == (row.ring_passes is not None)
        if row.is_collective:
            assert list(row.features)[-2:] == ["nodes", "gpus_per_node"]
        if row.substitute is not None:
            # What runs once per update is answered by a forward pass.
            asked = {Direction.FORWARD if way is ONCE else way for way in row.directions}
            of_another = set(OPERATORS[row.substitute.operator].directions)
            assert asked <= of_another or set(row.directions) <= of_another
        if row.equal_unless_measured is not None:
            assert set(row.equal_unless_measured) <= set(row.features)
        assert {role: found.name for role, found in row.roles.items()} == {role: role for role in row.roles}


def test_entries_over_each_link_of_a_ring() -> None:
    # NVIDIA's PERFORMANCE.md, factors of the entries that one process puts in, for 8 processes.
    found = {}
    for name, row in OPERATORS.items():
        if row.ring_passes is not None:
            constant, growing, shrinking = row.ring_passes
            found[name] = constant + growing * 8 + shrinking / 8
    assert found == {
        "all_reduce": 2 * 7 / 8,
        "all_gather": 7,
        "reduce_scatter": 7 / 8,
        "all_to_all": 7 / 8,
        "point_to_point": 1,
    }


def test_one_law_serves_every_role() -> None:
    assert list(OPERATORS["gemm"].roles) == [
        "qkv",
        "attention_output",
        "recurrent_in",
        "recurrent_out",
        "mlp_up",
        "mlp_gate_up",
        "mlp_down",
        "logits",
        "query_down",
        "query_up",
        "kv_down",
        "kv_up",
        "router",
        "latent_down",
        "latent_up",
        "shared_gate_up",
        "shared_down",
        "next_token",
        "adapter_down",
        "adapter_up",
    ]
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        assert list(OPERATORS[name].roles)[:3] == ["tensor", "data", "expert_data"]
    assert list(OPERATORS["adam"].roles) == ["first_stage", "middle_stage", "last_stage"]


@pytest.mark.parametrize(
    ("name", "role", "expected"),
    [
        ("gemm", "qkv", "Linear1"),
        ("all_reduce", "tensor", "MP_All-reduce"),
        ("adam", "last_stage", "Optimizer"),
        ("rope", "", "RoPE"),
        ("bias_add", "", "bias_add"),
        ("grouped_gemm", "", "grouped_gemm"),
        ("gemm", "", "gemm"),
        ("gemm", "router", "gemm (router)"),
        ("all_to_all", "expert", "all_to_all (expert)"),
        ("nothing known", "", "nothing known"),
    ],
)
def test_names_of_roles_in_tables(name: str, role: str, expected: str) -> None:
    assert role_name(name, role) == expected
