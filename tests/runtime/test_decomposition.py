"""What a stage calls, on what and how often, by hand from docs/method.md."""

from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.decomposition import Component, Decomposition, decompose
from kernelcast.runtime.operators import Direction

GPT_20B: dict[str, Any] = {
    "name": "gpt-20b",
    "hidden_size": 6144,
    "sequence_length": 2048,
    "attention_heads": 64,
    "encoders": 44,
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
    "encoders": 32,
    "vocabulary_size": 128256,
    "mlp_size": 14336,
    "norm": "rms_norm",
    "activation": "swiglu",
}
PAPER = {"pp": 4, "mp": 4, "dp": 8, "micro_batch": 4, "micro_batches": 16}


def taken_apart(
    model: dict[str, Any],
    layout: dict[str, Any],
    *,
    gpus_per_node: int = 4,
    bucket_entries: int = 1_260_000_000,
) -> Decomposition:
    return decompose(
        model=ModelConfig(**model),
        parallelism=Parallelism(**layout),
        cluster=Cluster(gpus_per_node=gpus_per_node),
        bucket_entries=bucket_entries,
    )


def vectors(parts: Decomposition) -> dict[str, tuple[int, ...]]:
    """Operator → vector of those whose vector is the same wherever they are called."""
    every = {(call.operator, call.vector) for stage in parts.stages for call in stage.calls}
    return {operator: vector for operator, vector in every if not operator.startswith(("dp_", "optimizer"))}


def counts(parts: Decomposition, stage: int, *components: Component) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for call in parts.stages[stage].calls:
        if call.component in components:
            key = call.operator, call.direction.value
            found[key] = found.get(key, 0) + call.count
    return found


def test_gpt_20b_workload_vectors() -> None:
    # b·l = 8,192; d/h = 96; h/mp = 16; v/mp = 50,688 / 4 = 12,672; P2P 4·2,048·6,144/4.
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
    layout = {"pp": 2, "mp": 2, "dp": 1, "micro_batch": 2, "micro_batches": 8}
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
    assert [stage.encoders for stage in parts.stages] == [11, 12, 12, 9]
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
    assert counts(parts, 0, Component.ENCODER_FORWARD) == forward | {("mp_all_reduce", "once"): 11}
    assert counts(parts, 0, Component.ENCODER_BACKWARD) == backward | {("mp_all_reduce", "once"): 22}
    assert counts(parts, 0, Component.ENDS_FORWARD) == {
        ("embedding", "forward"): 1,
        ("mp_all_reduce", "once"): 1,
    }
    assert counts(parts, 0, Component.ENDS_BACKWARD) == {("embedding", "backward"): 1}
    assert counts(parts, 1, Component.ENDS_FORWARD, Component.ENDS_BACKWARD) == {}
    last = ("layer_norm", "logits_linear", "cross_entropy")
    assert counts(parts, 3, Component.ENDS_FORWARD) == {(name, "forward"): 1 for name in last}
    assert counts(parts, 3, Component.ENDS_BACKWARD) == {(name, "backward"): 1 for name in last}


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
    again = counts(parts, 1, Component.ENCODER_BACKWARD)
    assert counts(parts, 1, Component.ENCODER_FORWARD) == counts(plain, 1, Component.ENCODER_FORWARD)
    assert again["qkv_linear", "forward"] == again["qkv_linear", "backward"] == 9
    assert again["rms_norm", "forward"] == 18
    assert again["mp_all_reduce", "once"] == 9 * (2 + 2)
    assert counts(parts, 0, Component.ENDS_BACKWARD) == {("embedding", "backward"): 1}


def test_update_calls_and_buckets() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    update = (Component.OPTIMIZER, Component.ALL_REDUCE, Component.ALL_GATHER)
    found = [
        [(call.operator, call.vector, call.count) for call in stage.calls if call.component in update]
        for stage in parts.stages
    ]
    # 1,323,987,456 parameters on the first stage: one bucket of 1.26e9 and a rest; 1/8 of them to gather.
    assert found[0] == [
        ("optimizer_first_stage", (1_323_987_456, 11), 1),
        ("dp_all_reduce", (1_260_000_000, 8, 1), 1),
        ("dp_all_reduce", (63_987_456, 8, 1), 1),
        ("dp_all_gather", (165_498_432, 8, 1), 1),
    ]
    assert found[1][0] == ("optimizer_middle_stage", (1_359_415_296, 12), 1)
    assert found[3] == [
        ("optimizer_last_stage", (1_097_430_528, 9), 1),
        ("dp_all_reduce", (1_097_430_528, 8, 1), 1),
        ("dp_all_gather", (137_178_816, 8, 1), 1),
    ]


def test_exact_buckets_leave_no_rest() -> None:
    parts = taken_apart(GPT_20B, PAPER, bucket_entries=1_323_987_456 // 4)
    reduces = [(c.vector[0], c.count) for c in parts.stages[0].calls if c.operator == "dp_all_reduce"]
    assert reduces == [(330_996_864, 4)]


def test_degrees_of_one_call_no_collective_and_a_single_stage_is_both() -> None:
    parts = taken_apart(GPT_20B, {"pp": 1, "mp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1})
    (stage,) = parts.stages
    names = {call.operator for call in stage.calls}
    assert stage.encoders == 44
    assert not names & {"mp_all_reduce", "dp_all_reduce", "dp_all_gather", "pp_p2p"}
    assert {"embedding", "logits_linear", "cross_entropy", "optimizer_last_stage"} <= names
    assert not names & {"optimizer_first_stage", "optimizer_middle_stage"}


def test_a_stage_without_encoders_calls_none() -> None:
    parts = taken_apart(
        {**GPT_20B, "encoders": 1}, {"pp": 2, "mp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}
    )
    assert [stage.encoders for stage in parts.stages] == [1, 0]
    assert counts(parts, 1, Component.ENCODER_FORWARD, Component.ENCODER_BACKWARD) == {}
    assert all(call.count > 0 for stage in parts.stages for call in stage.calls)


def test_once_only_operators_are_asked_once() -> None:
    for call in taken_apart(GPT_20B, PAPER).stages[0].calls:
        once = call.operator.startswith(("mp_", "dp_", "pp_", "optimizer"))
        assert (call.direction is Direction.ONCE) is once


@pytest.mark.parametrize(
    ("model", "layout", "bucket_entries", "message"),
    [
        ({}, {"mp": 3}, 1, r"^mp is 3, expected a divisor of attention_heads \(64\) of model gpt-20b$"),
        ({"kv_heads": 2}, {}, 1, r"^mp is 4, expected a divisor of kv_heads \(2\) of model gpt-20b$"),
        ({"mlp_size": 6}, {}, 1, r"^mp is 4, expected a divisor of mlp_size \(6\) of model gpt-20b$"),
        ({}, {"pp": 50}, 1, r"^pp is 50, expected from 1 to 16: 44 encoders make 49 blocks"),
        ({}, {}, 0, r"^bucket_entries is 0, expected a whole number from 1 to"),
    ],
)
def test_layouts_that_do_not_fit(
    model: dict[str, Any], layout: dict[str, Any], bucket_entries: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        taken_apart(GPT_20B | model, PAPER | layout, bucket_entries=bucket_entries)
