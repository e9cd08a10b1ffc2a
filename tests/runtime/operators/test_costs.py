"""What every operator computes and moves, counted by hand per element; bytes in entries of 2 bytes."""

import pytest

from kernelcast.runtime.operators import OPERATORS, Direction, operator

FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
_ENTRY_BYTES = 2


# Of one element of the tensor: FLOPs, tensors read and written, and how many of them no kernel can do without.
PER_ELEMENT = {
    # Mean (1), centred (1), squared and summed (2), scaled (2), weight and bias (2).
    ("layer_norm", FORWARD): (8, 2, 2),
    # Input and gradient of the output read, gradient of the input written, and once more for weight and bias.
    ("layer_norm", BACKWARD): (14, 4, 3),
    ("rms_norm", FORWARD): (4, 2, 2),  # squared, summed, scaled, weighted
    ("rms_norm", BACKWARD): (10, 4, 3),
    # Of separate kernels, some in fp32: counted by tests/runtime/operators/test_eager_kernels.py.
    ("eager_rms_norm", FORWARD): (4, 18, 2),
    ("eager_rms_norm", BACKWARD): (10, 46, 3),
    ("eager_swiglu", FORWARD): (6, 5, 3),
    ("eager_swiglu", BACKWARD): (10, 9, 5),
    ("gelu", FORWARD): (8, 2, 2),
    ("gelu", BACKWARD): (13, 3, 3),  # input, gradient in, gradient out
    ("swiglu", FORWARD): (6, 3, 3),  # gate, up, product
    ("swiglu", BACKWARD): (10, 5, 5),  # gate, up, gradient; gradients of both
    ("residual_add", FORWARD): (1, 3, 3),
    ("residual_add", BACKWARD): (1, 3, 3),
    ("bias_add", FORWARD): (1, 2, 2),
    ("bias_add", BACKWARD): (1, 1, 1),  # a sum over the rows writes next to nothing
    ("dropout", FORWARD): (2, 2.5, 2.5),  # compared and scaled; a mask of a byte
    ("dropout", BACKWARD): (1, 2.5, 2.5),
    ("copy", FORWARD): (0, 2, 2),
    ("copy", BACKWARD): (0, 2, 2),
    ("embedding_mask", FORWARD): (0, 2, 0),  # rows of a shard that holds all tokens need not be touched
    ("embedding_mask", BACKWARD): (0, 2, 0),
    ("cross_entropy", FORWARD): (5, 3, 1),
    ("cross_entropy", BACKWARD): (3, 3, 2),
    ("router", FORWARD): (10, 6, 1),
    ("router", BACKWARD): (10, 6, 1),
    ("float8_cast", FORWARD): (1, 1.5, 1.5),  # 2 bytes in, 1 byte out
    ("float8_cast", BACKWARD): (1, 1.5, 1.5),
    ("causal_convolution", FORWARD): (8, 2, 2),
    ("causal_convolution", BACKWARD): (16, 3, 3),
    ("causal_mask_fill", FORWARD): (0, 2, 0.5),
    ("causal_mask_fill", BACKWARD): (0, 2, 0.5),
    ("softmax", FORWARD): (5, 2, 2),
    ("softmax", BACKWARD): (4, 3, 3),
    ("fused_causal_softmax", FORWARD): (6, 2, 1.5),
    ("fused_causal_softmax", BACKWARD): (5, 3, 1.5),
    ("qkv_split", BACKWARD): (0, 2, 2),
}
FORMATS = ("float8_tensor", "float8_row", "float8_block", "float4_block")
ELEMENTWISE = {
    name: row for name, row in OPERATORS.items() if row.is_elementwise and name not in ("rope", "eager_rope")
}


@pytest.mark.parametrize(("name", "direction"), PER_ELEMENT)
def test_an_element_of_a_tensor(name: str, direction: Direction) -> None:
    row = operator(name)
    vector = (2, 3, 5, 7)[: len(row.features)]
    elements = {2: 6, 3: 30, 4: 210}[len(vector)]
    flops, moved, least = PER_ELEMENT[name, direction]
    assert row.flops(direction, vector) == flops * elements
    assert row.moved_bytes(direction, vector, _ENTRY_BYTES) == moved * elements * _ENTRY_BYTES
    assert row.least_bytes(direction, vector, _ENTRY_BYTES) == least * elements * _ENTRY_BYTES


def test_every_elementwise_operator_is_counted() -> None:
    assert {name for name, _ in PER_ELEMENT} == set(ELEMENTWISE)
    for name, row in ELEMENTWISE.items():
        assert {direction for direction in row.costs if (name, direction) not in PER_ELEMENT} == set()


# (FLOPs, entries moved, least entries) at a small workload.
OTHERS = [
    # Rows of a table may be read from a cache: at least what is written; backward at least the gradient.
    ("embedding", FORWARD, (2, 7, 5), 0, 20, 10),
    ("embedding", BACKWARD, (2, 7, 5), 45, 30 + 140, 35),
    # 4 tokens of 5 elements, 2 experts each: one FLOP sums a row, two weight and sum it.
    ("permute", FORWARD, (4, 2, 5), 40, 20 + 40, 20 + 40),
    ("permute", BACKWARD, (4, 2, 5), 40, 20 + 40, 20 + 40),
    ("unpermute", FORWARD, (4, 2, 5), 80, 20 + 40, 20 + 40),
    ("unpermute", BACKWARD, (4, 2, 5), 80, 20 + 40, 20 + 40),
    # Bytes of 4 tokens with 3 heads, 2 of keys, of 8: queries of one byte and results of two, keys and values.
    ("flash_attention_float8", FORWARD, (1, 4, 3, 2, 8), 2 * 16 * 24, 3 * 96 + 2 * 64, 3 * 96 + 2 * 64),
    # Backward also the result and its gradient, of two bytes, and three gradients of two.
    ("flash_attention_float8", BACKWARD, (1, 4, 3, 2, 8), 5 * 16 * 24, 7 * 96 + 6 * 64, 7 * 96 + 6 * 64),
    ("gradient_clip", ONCE, (100,), 300, 300, 100),
    ("gradient_scale", ONCE, (100,), 300, 300, 200),
    ("gradient_zero", ONCE, (100,), 0, 100, 100),
    ("gemm", Direction.WEIGHT_GRADIENT, (2, 3, 5), 60, 6 + 3 * 15 + 10, 6 + 15 + 10),
    ("gemm", BACKWARD, (2, 3, 5), 120, 12 + 60 + 20, 12 + 30 + 10),
    ("batched_gemm", BACKWARD, (2, 3, 5, 7), 840, 60 + 140 + 84, 60 + 140 + 42),
    # 2 · 3 queries that see 5 keys in the mean, of 7 keys; 4 heads, 2 of keys, of 8: two products, five backward.
    ("attention_block", FORWARD, (2, 3, 7, 5, 4, 2, 8), 4 * 6 * 5 * 32, 2 * 6 * 32 + 2 * 14 * 16, 832),
    ("attention_block", BACKWARD, (2, 3, 7, 5, 4, 2, 8), 10 * 6 * 5 * 32, 4 * 6 * 32 + 4 * 14 * 16, 1664),
]


@pytest.mark.parametrize(("name", "direction", "vector", "flops", "moved", "least"), OTHERS)
def test_other_operators(
    name: str, direction: Direction, vector: tuple[int, ...], flops: float, moved: float, least: float
) -> None:
    row = operator(name)
    assert row.flops(direction, vector) == flops
    assert row.moved_bytes(direction, vector, _ENTRY_BYTES) == moved * _ENTRY_BYTES
    assert row.least_bytes(direction, vector, _ENTRY_BYTES) == least * _ENTRY_BYTES


# What each of mamba_ssm's kernels reads and writes of a token, in entries of 16 bit: of w = heads · head size, of w in
# a state per chunk, of groups · state size, of scores of a chunk per group, of heads. Fp32 counts twice.
SCAN_KERNELS = {
    FORWARD: {
        "chunk_cumsum_fwd": (0, 0, 0, 0, 1 + 4),
        "chunk_state_fwd": (1, 2, 1, 0, 4),
        "state_passing_fwd": (0, 2 + 1, 0, 0, 0),
        "bmm_chunk_fwd": (0, 0, 2, 2, 0),
        "chunk_scan_fwd": (2 + 2, 1, 1, 2, 4),  # x, gate; outputs before and after it
    },
    BACKWARD: {
        "chunk_cumsum_fwd": (0, 0, 0, 0, 1 + 4),
        "bmm_chunk_fwd": (0, 0, 2, 2, 0),
        "chunk_state_fwd": (1, 2, 1, 0, 4),
        "state_passing_fwd": (0, 2 + 2, 0, 0, 0),
        "chunk_scan_bwd_dz": (
            4 + 2,
            0,
            0,
            0,
            0,
        ),  # x, gate, output, its gradient; gradients of gate and output
        "chunk_scan_bwd_dstates": (1, 2, 1, 0, 2),
        "state_passing_bwd": (0, 4 + 2, 0, 0, 0),
        "chunk_scan_chunk_state_bwd_dx": (2 + 1, 1, 1, 2, 6),
        "chunk_state_bwd_db": (1, 1, 1 + 2, 0, 6),
        "chunk_scan_bwd_dC": (1, 1, 1 + 2, 0, 4),
        "chunk_scan_bwd_dcb": (2, 0, 0, 2, 4),
        "bmm_chunk_bwd": (0, 0, 2 * 4, 2 * 2, 0),
        "chunk_scan_bwd_ddAcs_stable": (2, 0, 0, 2, 6),
        "sums of decays, chunk_cumsum_bwd": (0, 0, 0, 0, 32),
    },
}


@pytest.mark.parametrize("direction", SCAN_KERNELS)
def test_what_the_kernels_of_a_scan_move(direction: Direction) -> None:
    tokens, groups, heads, state, head = 2 * 3, 4, 8, 16, 32
    of_w, of_states, of_groups, of_scores, of_heads = map(
        sum, zip(*SCAN_KERNELS[direction].values(), strict=True)
    )
    w, chunk = heads * head, 128
    moved = of_w * w + of_states * w * state / chunk + (of_groups * state + of_scores * chunk) * groups
    row = operator("state_space_scan")
    vector = (2, 3, groups, heads, state, head)
    assert row.moved_bytes(direction, vector, 1) == tokens * (moved + of_heads * heads)
    assert row.least_bytes(direction, vector, 1) < row.moved_bytes(direction, vector, 1)


@pytest.mark.parametrize("name", ["gemm_float8_tensor", "gemm_float8_block"])
def test_a_product_in_8_bit_reads_and_writes_at_least(name: str) -> None:
    # [2, 3] × [3, 5] in bytes; what is in 16 bits counts twice, casts and transposed copies not at all.
    row, vector = operator(name), (2, 3, 5)
    assert row.least_bytes(FORWARD, vector, 1) == 6 + 15 + 2 * 10
    assert row.least_bytes(Direction.INPUT_GRADIENT, vector, 1) == 2 * 6 + 15 + 10
    assert row.least_bytes(Direction.WEIGHT_GRADIENT, vector, 1) == 6 + 2 * 15 + 10


def test_an_entry_of_fewer_bytes_than_any_kernel_moves() -> None:
    assert {
        name: row.fewest_entry_bytes for name, row in OPERATORS.items() if row.fewest_entry_bytes != 1
    } == {"adam": 4}


@pytest.mark.parametrize(
    ("name", "nodes", "gpus_per_node", "over_link", "over_cards"),
    [
        # What goes over a device's link and over a node's cards, of 1 entry that each process puts in.
        ("all_reduce", 1, 1, 0, 0),
        ("all_reduce", 1, 4, 1, 0),
        ("all_reduce", 2, 1, 0, 1),
        ("all_reduce", 2, 4, 1, 1),
        ("all_gather", 1, 4, 3, 0),  # the shards of three others
        ("all_gather", 2, 4, 3, 4),  # four of the other node
        ("reduce_scatter", 1, 4, 3 / 4, 0),
        ("reduce_scatter", 2, 4, 3 / 8, 1 / 2),
        ("all_to_all", 1, 4, 3 / 4, 0),
        ("all_to_all", 2, 4, 3 / 8, 4 / 2),  # four processes send half of theirs to the other node
        ("point_to_point", 1, 2, 1, 0),
        ("point_to_point", 2, 1, 0, 1),
    ],
)
def test_what_a_collective_has_to_send(
    name: str, nodes: int, gpus_per_node: int, over_link: float, over_cards: float
) -> None:
    wire = operator(name).wire
    assert wire is not None
    assert wire(nodes, gpus_per_node) == (over_link, over_cards)


def test_flags_of_collectives() -> None:
    flags = ("is_divided", "is_in_place", "is_reduced", "is_pairwise", "is_sharded")
    found = {
        name: {flag for flag in flags if getattr(row, flag)}
        for name, row in OPERATORS.items()
        if row.is_collective
    }
    assert found == {
        "all_reduce": {"is_in_place", "is_reduced"},
        "all_gather": {"is_sharded"},
        "reduce_scatter": {"is_divided"},
        "all_to_all": {"is_divided", "is_pairwise"},
        "point_to_point": set(),
    }
    assert not any(
        getattr(row, flag) for row in OPERATORS.values() if not row.is_collective for flag in flags
    )


def test_which_operators_a_step_can_do_without() -> None:
    # A residual addition that moves as much, or nothing, answers for them; the other group is measured on request.
    assert {name for name, row in OPERATORS.items() if row.is_optional and not row.is_on_request} == {
        "bias_add",
        "dropout",
        "copy",
        "embedding_mask",
        "router",
        "permute",
        "unpermute",
        "attention_block",
        "qkv_split",
        "gradient_zero",
        "gradient_clip",
        "gradient_scale",
    }
    assert {name for name, row in OPERATORS.items() if row.is_on_request} == {
        "moe",
        "flash_attention_float8",
        *(f"eager_{name}" for name in ("rms_norm", "swiglu", "rope")),
        "float8_cast",
        "causal_convolution",
        "gated_delta_rule",
        "state_space_scan",
        *(f"{kind}_{one}" for kind in ("gemm", "grouped_gemm") for one in FORMATS),
    }
    assert {name for name, row in OPERATORS.items() if row.per_update} == {
        "adam",
        "gradient_zero",
        "gradient_clip",
        "gradient_scale",
    }


def test_what_answers_for_an_operator() -> None:
    found = {
        name: (one.operator, one.factor, one.alike, one.gathered, one.within)
        for name, row in OPERATORS.items()
        if (one := row.substitute) is not None
    }
    as_much_memory = ("residual_add", 1.0, True, False, 1.3)
    assert found == {
        "rms_norm": ("layer_norm", 1.0, True, False, 1.3),
        "swiglu": ("gelu", 1.0, True, False, 1.3),
        **dict.fromkeys(("bias_add", "dropout", "copy", "embedding_mask", "router"), as_much_memory),
        **dict.fromkeys(("float8_cast", "qkv_split", "rope", "causal_convolution"), as_much_memory),
        **dict.fromkeys(("eager_rms_norm", "eager_swiglu", "eager_rope"), as_much_memory),
        **dict.fromkeys(("adam", "gradient_zero", "gradient_clip", "gradient_scale"), as_much_memory),
        **dict.fromkeys(("permute", "unpermute"), ("residual_add", 4.2, True, False, 1.3)),
        "grouped_gemm": ("gemm", 1.0, False, False, 2.1),
        **{f"grouped_gemm_{one}": (f"gemm_{one}", 1.0, False, False, 2.1) for one in FORMATS},
        "gemm_float8_row": ("gemm_float8_tensor", 1.0, False, False, 1.3),
        "gemm_float8_block": ("gemm_float8_tensor", 1.0, False, False, 1.3),
        "state_space_scan": ("gated_delta_rule", 1.0, False, False, 2.0),
        "flash_attention_float8": ("flash_attention", 0.81, False, False, 1.2),
        "attention_block": ("flash_attention", 1.0, False, False, 1.3),
        # A ring all-reduce is a reduce-scatter, then an all-gather.
        "all_gather": ("all_reduce", 0.5, False, True, 1.3),
        "reduce_scatter": ("all_reduce", 0.5, False, False, 1.3),
    }


def test_kernels_of_one_call() -> None:
    for name, row in ELEMENTWISE.items():
        expected = {"router": (46, 20), "eager_rms_norm": (8, 16), "eager_swiglu": (2, 3)}.get(name, (1, 1))
        assert (row.kernels[FORWARD], row.kernels[BACKWARD]) == expected


def test_attention_without_a_mask_computes_twice_as_much() -> None:
    vector = (2, 3, 5, 5, 7)
    row = operator("flash_attention")
    assert row.flops(FORWARD, vector, "without mask") == 2 * row.flops(FORWARD, vector)
    assert row.backward_slowdown == operator("attention_block").backward_slowdown == 1.2
    assert operator("softmax").backward_slowdown == 1.0


@pytest.mark.parametrize(
    ("vector", "whole", "factor"),
    [
        # 1 · 8 queries that see 4.5 keys (5 as a whole number): causal over 9 tokens, 8 / 9 of such a sample.
        ((1, 8, 8, 5, 4, 2, 8), (1, 9, 4, 2, 8), 8 / 9),
        # A window of 3 keys over 20 tokens, 2 samples: sequences of 5, 8 of them.
        ((2, 20, 20, 3, 4, 2, 8), (8, 5, 4, 2, 8), 1),
        ((1, 4, 4, 1, 4, 2, 8), (4, 1, 4, 2, 8), 1),
        ((1, 4, 4, 0, 4, 2, 8), (4, 1, 4, 2, 8), 1),
        # 2 queries over 9 tokens each: no whole sample, two ninths of one.
        ((1, 2, 9, 5, 4, 2, 8), (1, 9, 4, 2, 8), 2 / 9),
    ],
)
def test_a_block_of_attention_is_asked_as_causal_attention(
    vector: tuple[int, ...], whole: tuple[int, ...], factor: float
) -> None:
    substitute = operator("attention_block").substitute
    assert substitute is not None
    assert substitute.asks is not None
    assert substitute.asks(vector) == (whole, factor)


def test_products_of_experts_are_asked_one_by_one() -> None:
    substitute = operator("grouped_gemm").substitute
    assert substitute is not None
    assert substitute.asks is not None
    assert substitute.asks((4, 2, 3, 5)) == ((2, 3, 5), 4.0)
