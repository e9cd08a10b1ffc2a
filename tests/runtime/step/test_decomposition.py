"""What a stage calls, on what and how often, by hand from docs/method.md."""

from collections.abc import Iterable
from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.decomposition import Component, Decomposition, OperatorCall, decompose

GPT_20B: dict[str, Any] = {
    "name": "gpt-20b",
    "hidden_size": 6144,
    "sequence_length": 2048,
    "attention_heads": 64,
    "layers": 44,
    "vocabulary_size": 50257,
    "attention": "fused_softmax",
    "parallel_residual": True,
}
LLAMA_3_8B: dict[str, Any] = {
    "name": "llama-3-8b",
    "hidden_size": 4096,
    "sequence_length": 4096,
    "attention_heads": 32,
    "kv_heads": 8,
    "layers": 32,
    "vocabulary_size": 128256,
    "mlp_size": 14336,
    "norm": "rms_norm",
    "activation": "swiglu",
}
PAPER = {"pp": 4, "tp": 4, "dp": 8, "micro_batch": 4, "micro_batches": 16}


def taken_apart(
    model: dict[str, Any],
    layout: dict[str, Any],
    *,
    gpus_per_node: int = 4,
    bucket_entries: int = 1_260_000_000,
    left_out: frozenset[str] = frozenset(row.name for row in OPERATORS.values() if row.supplementary),
) -> Decomposition:
    """By default without what the paper's Table I does not list."""
    return decompose(
        model=ModelConfig(**model),
        parallelism=Parallelism(**layout),
        cluster=Cluster(gpus_per_node=gpus_per_node),
        bucket_entries=bucket_entries,
        left_out=left_out,
    )


def vectors(parts: Decomposition) -> dict[str, tuple[int, ...]]:
    """Operator → vector of those whose vector is the same wherever they are called, but for the loss's all-reduces."""
    loss = set(parts.last.forward)
    every = {
        (call.operator, call.vector)
        for stage in parts.stages
        for call in parts.calls(stage)
        if call.operator != "mp_all_reduce" or call not in loss
    }
    return {operator: vector for operator, vector in every if not operator.startswith(("dp_", "optimizer"))}


def counts(parts: Decomposition, stage: int, *components: Component) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for call in parts.calls(parts.stages[stage]):
        if call.component in components:
            key = call.operator, call.direction.value
            found[key] = found.get(key, 0) + call.count
    return found


def test_gpt_20b_workload_vectors() -> None:
    # b·l = 8,192; d/h = 96; h/tp = 16; v/tp = 50,688 / 4 = 12,672; P2P 4·2,048·6,144/4.
    assert vectors(taken_apart(GPT_20B, PAPER)) == {
        "embedding": (8192, 12672, 6144),
        "layer_norm": (4, 2048, 6144),
        "qkv_linear": (8192, 6144, 4608),
        "rope": (4, 2048, 16, 96),
        "attention_scores": (64, 2048, 96, 2048),
        "fused_causal_softmax": (64, 2048, 2048),
        "attention_values": (64, 2048, 2048, 96),
        "attention_output_linear": (8192, 1536, 6144),
        "residual_add": (4, 2048, 6144),
        "mlp_up_linear": (8192, 6144, 6144),
        "gelu": (4, 2048, 6144),
        "mlp_down_linear": (8192, 6144, 6144),
        "logits_linear": (8192, 6144, 12672),
        "cross_entropy": (4, 2048, 12672),
        "mp_all_reduce": (50_331_648, 1, 4),
        "pp_p2p": (12_582_912, 2, 1),
    }


def test_llama_3_8b_workload_vectors() -> None:
    layout = {"pp": 2, "tp": 2, "dp": 1, "micro_batch": 2, "micro_batches": 8}
    # Linear1 (32 + 2·8)·128/2 = 3,072; gate and up 2·14,336/2; v = 501 · 256, nothing padded.
    assert vectors(taken_apart(LLAMA_3_8B, layout, gpus_per_node=8)) == {
        "embedding": (8192, 64128, 4096),
        "rms_norm": (2, 4096, 4096),
        "qkv_linear": (8192, 4096, 3072),
        "rope": (2, 4096, 16, 128),
        "flash_attention": (2, 4096, 16, 128),
        "attention_output_linear": (8192, 2048, 4096),
        "residual_add": (2, 4096, 4096),
        "mlp_gate_up_linear": (8192, 4096, 14336),
        "swiglu": (2, 4096, 7168),
        "mlp_down_linear": (8192, 7168, 4096),
        "logits_linear": (8192, 4096, 64128),
        "cross_entropy": (2, 4096, 64128),
        "mp_all_reduce": (33_554_432, 1, 2),
        "pp_p2p": (16_777_216, 1, 2),
    }


def test_unfused_attention_and_no_rotary() -> None:
    model = {**GPT_20B, "attention": "unfused", "rotary": False}
    found = vectors(taken_apart(model, PAPER))
    assert found["causal_mask_fill"] == found["softmax"] == (4, 16, 2048, 2048)
    assert not {"rope", "fused_causal_softmax", "flash_attention"} & set(found)


def test_calls_of_each_stage() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    assert [stage.layers for stage in parts.stages] == [11, 12, 12, 9]
    inner = dict.fromkeys(
        (
            "qkv_linear",
            "rope",
            "attention_scores",
            "fused_causal_softmax",
            "attention_values",
            "attention_output_linear",
            "mlp_up_linear",
            "gelu",
            "mlp_down_linear",
        ),
        1,
    ) | {"layer_norm": 2, "residual_add": 2}
    forward = {(name, "forward"): 11 * count for name, count in inner.items()}
    backward = {(name, "backward"): 11 * count for name, count in inner.items()}
    assert counts(parts, 0, Component.LAYER_FORWARD) == forward | {("mp_all_reduce", "once"): 11}
    assert counts(parts, 0, Component.LAYER_BACKWARD) == backward | {("mp_all_reduce", "once"): 22}
    assert counts(parts, 0, Component.ENDS_FORWARD) == {
        ("embedding", "forward"): 1,
        ("mp_all_reduce", "once"): 1,
    }
    assert counts(parts, 0, Component.ENDS_BACKWARD) == {("embedding", "backward"): 1}
    assert counts(parts, 1, Component.ENDS_FORWARD, Component.ENDS_BACKWARD) == {}
    last = ("layer_norm", "logits_linear", "cross_entropy")
    # The loss combines three entries per token; the logits' input gradients are summed.
    all_reduce = ("mp_all_reduce", "once")
    assert counts(parts, 3, Component.ENDS_FORWARD) == {(name, "forward"): 1 for name in last} | {
        all_reduce: 3
    }
    assert counts(parts, 3, Component.ENDS_BACKWARD) == {(name, "backward"): 1 for name in last} | {
        all_reduce: 1
    }
    assert operator_vectors(parts.last.forward, "mp_all_reduce") == [("mp_all_reduce", (4 * 2048, 1, 4), 3)]


def test_sends_are_charged_to_the_sender() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    sends = [
        (
            bool(counts(parts, stage, Component.SEND_FORWARD)),
            bool(counts(parts, stage, Component.SEND_BACKWARD)),
        )
        for stage in range(4)
    ]
    assert sends == [(True, False), (True, True), (True, True), (False, True)]


def test_recomputation_runs_the_forward_pass_again_with_its_all_reduces() -> None:
    parts = taken_apart(LLAMA_3_8B, {**PAPER, "recompute": "full"})
    plain = taken_apart(LLAMA_3_8B, PAPER)
    again = counts(parts, 1, Component.LAYER_BACKWARD)
    assert counts(parts, 1, Component.LAYER_FORWARD) == counts(plain, 1, Component.LAYER_FORWARD)
    assert again["qkv_linear", "forward"] == again["qkv_linear", "backward"] == 9
    assert again["rms_norm", "forward"] == 18
    assert again["mp_all_reduce", "once"] == 9 * (2 + 2)
    assert counts(parts, 0, Component.ENDS_BACKWARD) == {("embedding", "backward"): 1}


def test_update_calls_and_buckets() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    found = [
        [(call.operator, call.vector, call.count) for call in stage.update.calls] for stage in parts.stages
    ]
    # 1,323,987,456 parameters on the first stage: one bucket of 1.26e9 and a rest; 1/8 of them to gather.
    assert found[0] == [
        ("dp_all_reduce", (1_260_000_000, 8, 1), 1),
        ("dp_all_reduce", (63_987_456, 8, 1), 1),
        ("optimizer_first_stage", (1_323_987_456, 11), 1),
        ("dp_all_gather", (165_498_432, 8, 1), 1),
    ]
    assert found[1][2] == ("optimizer_middle_stage", (1_359_415_296, 12), 1)
    assert found[3] == [
        ("dp_all_reduce", (1_097_430_528, 8, 1), 1),
        ("optimizer_last_stage", (1_097_430_528, 9), 1),
        ("dp_all_gather", (137_178_816, 8, 1), 1),
    ]


def test_exact_buckets_leave_no_rest() -> None:
    parts = taken_apart(GPT_20B, PAPER, bucket_entries=1_323_987_456 // 4)
    reduces = [(c.vector[0], c.count) for c in parts.stages[0].update.calls if c.operator == "dp_all_reduce"]
    assert reduces == [(330_996_864, 4)]


def test_degrees_of_one_call_no_collective_and_a_single_stage_is_both() -> None:
    parts = taken_apart(GPT_20B, {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1})
    (stage,) = parts.stages
    names = {call.operator for call in parts.calls(stage)}
    assert stage.layers == 44
    assert not names & {"mp_all_reduce", "dp_all_reduce", "dp_all_gather", "pp_p2p"}
    assert {"embedding", "logits_linear", "cross_entropy", "optimizer_last_stage"} <= names
    assert not names & {"optimizer_first_stage", "optimizer_middle_stage"}


def test_a_stage_without_layers_calls_none() -> None:
    parts = taken_apart(
        {**GPT_20B, "layers": 1}, {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}
    )
    assert [stage.layers for stage in parts.stages] == [1, 0]
    assert counts(parts, 1, Component.LAYER_FORWARD, Component.LAYER_BACKWARD) == {}
    assert all(call.count > 0 for stage in parts.stages for call in parts.calls(stage))


def test_once_only_operators_are_asked_once() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    for call in parts.calls(parts.stages[0]):
        once = call.operator.startswith(("mp_", "dp_", "pp_", "optimizer"))
        assert (call.direction is Direction.ONCE) is once


@pytest.mark.parametrize(
    ("model", "layout", "bucket_entries", "message"),
    [
        ({}, {"tp": 3}, 1, r"^tp is 3, expected a divisor of attention_heads \(64\) of model gpt-20b$"),
        ({"kv_heads": 2}, {}, 1, r"^tp is 4, expected a divisor of kv_heads \(2\) of model gpt-20b$"),
        ({"mlp_size": 6}, {}, 1, r"^tp is 4, expected a divisor of mlp_size \(6\) of model gpt-20b$"),
        ({}, {"pp": 50}, 1, r"^pp is 50, expected from 1 to 44 for 44 layers$"),
        ({}, {}, 0, r"^bucket_entries is 0, expected a whole number from 1 to"),
    ],
)
def test_layouts_that_do_not_fit(
    model: dict[str, Any], layout: dict[str, Any], bucket_entries: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        taken_apart(GPT_20B | model, PAPER | layout, bucket_entries=bucket_entries)


def operator_vectors(calls: Iterable[OperatorCall], *names: str) -> list[tuple[str, tuple[int, ...], int]]:
    return [(call.operator, call.vector, call.count) for call in calls if call.operator in names]


def test_sequence_parallelism_by_hand() -> None:
    # b·l·d = 4 · 2,048 · 6,144 = 50,331,648 entries; a device of 4 holds 12,582,912, and 512 tokens.
    parts = taken_apart(GPT_20B, PAPER | {"sequence_parallel": True})
    collectives = ("mp_all_reduce", "mp_all_gather", "mp_reduce_scatter")
    gather, scatter = ("mp_all_gather", (12_582_912, 1, 4)), ("mp_reduce_scatter", (50_331_648, 1, 4))
    assert operator_vectors(parts.layer.forward, *collectives) == [(*gather, 1), (*scatter, 1)]
    assert operator_vectors(parts.layer.backward, *collectives) == [(*gather, 2), (*scatter, 2)]
    for calls, count in ((parts.layer.calls, 2), (parts.last.calls, 1)):
        assert {found[1:] for found in operator_vectors(calls, "layer_norm")} == {((4, 512, 6144), count)}
    assert {found[1] for found in operator_vectors(parts.layer.calls, "residual_add")} == {(4, 512, 6144)}
    # Between the collectives every device has all tokens.
    assert operator_vectors(parts.layer.forward, "gelu") == [("gelu", (4, 2048, 6144), 1)]
    assert operator_vectors(parts.first.forward, *collectives) == [(*scatter, 1)]
    assert operator_vectors(parts.first.backward, *collectives) == [(*gather, 1)]
    loss = ("mp_all_reduce", (4 * 2048, 1, 4), 3)
    assert operator_vectors(parts.last.forward, *collectives) == [(*gather, 1), loss]
    assert operator_vectors(parts.last.backward, *collectives) == [(*scatter, 1)]


def test_sequence_parallelism_of_one_device_changes_nothing() -> None:
    one = PAPER | {"tp": 1}
    assert taken_apart(GPT_20B, one | {"sequence_parallel": True}) == taken_apart(GPT_20B, one)


@pytest.mark.parametrize(
    ("attention", "again"),
    [
        ("flash", {"flash_attention"}),
        ("fused_softmax", {"attention_scores", "fused_causal_softmax", "attention_values"}),
        ("unfused", {"attention_scores", "causal_mask_fill", "softmax", "attention_values"}),
    ],
)
def test_selective_recomputation_runs_attention_again(attention: str, again: set[str]) -> None:
    model = {**GPT_20B, "attention": attention}
    plain, selective = (
        taken_apart(model, PAPER | {"recompute": recompute}).layer.backward
        for recompute in ("none", "selective")
    )
    added = selective[len(plain) :]
    assert selective[: len(plain)] == plain
    assert {call.operator for call in added} == again
    assert {(call.direction, call.count) for call in added} == {(Direction.FORWARD, 1)}


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, [("dp_all_reduce", 1_097_430_528), ("optimizer_last_stage", 1_097_430_528)]),
        (
            1,
            [
                ("dp_all_reduce", 1_097_430_528),
                ("optimizer_last_stage", 1_097_430_528),
                ("dp_all_gather", 137_178_816),
            ],
        ),
        (
            2,
            [
                ("optimizer_last_stage", 137_178_816),
                ("dp_all_gather", 137_178_816),
            ],
        ),
        (3, [("optimizer_last_stage", 137_178_816)]),
    ],
)
def test_updates_under_zero(zero: int, expected: list[tuple[str, int]]) -> None:
    # The last stage: 9 layers and the logits; 1,097,430,528 / 8 = 137,178,816 on a shard, 9 / 8 layers.
    last = taken_apart(GPT_20B, PAPER | {"zero": zero}).stages[-1]
    assert [(call.operator, call.vector[0]) for call in last.update.calls] == expected
    (optimizer,) = last.update.optimizer
    assert optimizer.vector[1] == (9 if zero < 2 else 2)


def test_fully_sharded_blocks_fetch_their_parameters() -> None:
    parts = taken_apart(GPT_20B, PAPER | {"zero": 3})
    # A layer of 113,284,608 parameters on a device, the embedding 12,672 · 6,144 and the logits with a norm.
    layer, embedding, logits = 113_284_608, 77_856_768, 77_869_056
    for block, parameters in ((parts.layer, layer), (parts.first, embedding), (parts.last, logits)):
        for gather in (block.gather_forward, block.gather_backward):
            assert operator_vectors(gather, "dp_all_gather") == [
                ("dp_all_gather", (parameters // 8, 8, 1), 1)
            ]
        assert operator_vectors(block.scatter, "dp_reduce_scatter") == [
            ("dp_reduce_scatter", (parameters, 8, 1), 1)
        ]
    assert parts.sharded
    for zero in (2, 3):
        alone = taken_apart(GPT_20B, PAPER | {"zero": zero, "dp": 1})
        assert not alone.sharded
        assert not alone.layer.gather_forward + alone.layer.scatter


def test_gradients_that_are_kept_in_shards_are_scattered_in_every_micro_batch() -> None:
    shared, parts = (taken_apart(GPT_20B, PAPER | {"zero": zero}) for zero in (3, 2))
    for block, other in (
        (parts.layer, shared.layer),
        (parts.first, shared.first),
        (parts.last, shared.last),
    ):
        assert block.scatter == other.scatter
        assert not block.gather_forward + block.gather_backward
    assert parts.sharded


def test_virtual_stages() -> None:
    layout = PAPER | {"schedule": "interleaved", "virtual_stages": 2}
    parts = taken_apart(GPT_20B, layout)
    # 49 blocks on 8 chunks; chunk c is on stage c mod 4.
    assert [chunk.layers for chunk in parts.chunks] == [5, 6, 6, 6, 6, 6, 6, 3]
    assert [chunk.stage for chunk in parts.chunks] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [stage.layers for stage in parts.stages] == [11, 12, 12, 9]
    # The first chunk receives nothing and the last one sends nothing on; all others do both.
    for stage, forward, backward in ((0, 2, 1), (1, 2, 2), (3, 1, 2)):
        assert counts(parts, stage, Component.SEND_FORWARD) == {("pp_p2p", "once"): forward}
        assert counts(parts, stage, Component.SEND_BACKWARD) == {("pp_p2p", "once"): backward}
    plain = taken_apart(GPT_20B, PAPER)
    assert [stage.update for stage in parts.stages] == [stage.update for stage in plain.stages]


def test_layers_by_hand() -> None:
    parts = taken_apart(GPT_20B, PAPER | {"layer_counts": (0, 20, 24, 0)})
    assert [stage.layers for stage in parts.stages] == [0, 20, 24, 0]
    assert counts(parts, 0, Component.LAYER_FORWARD) == {}
    assert counts(parts, 2, Component.LAYER_FORWARD)["qkv_linear", "forward"] == 24


def test_half_of_a_linear_backward_is_for_weights() -> None:
    parts = taken_apart(GPT_20B, PAPER | {"schedule": "zero_bubble", "recompute": "full"})
    assert parts.split
    linears = {call.operator for call in parts.layer.calls if call.is_linear_backward}
    assert linears == {"qkv_linear", "attention_output_linear", "mlp_up_linear", "mlp_down_linear"}
    assert [call.operator for call in parts.last.calls if call.is_linear_backward] == ["logits_linear"]
    # By the operator table: both products of a backward pass do what the forward one does.
    vector = (8192, 6144, 4608)
    row = OPERATORS["qkv_linear"]
    assert row.flops(Direction.BACKWARD, vector) == 2 * row.flops(Direction.FORWARD, vector)


def test_pieces_are_made_once() -> None:
    first, second = (taken_apart(GPT_20B, PAPER | {"pp": pp, "dp": 32 // pp}) for pp in (2, 4))
    assert first.layer.forward is second.layer.forward
    assert first.last.backward is second.last.backward
