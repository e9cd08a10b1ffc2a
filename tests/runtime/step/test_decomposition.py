"""What a stage calls, on what and how often, by hand from docs/method.md."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.op import COMPUTED_ONCE, Call, Component
from tests.runtime.step.published_jobs import (
    GPT_20B,
    LLAMA_3_8B,
    PAPER,
    ahead,
    by_name,
    counts,
    listed,
    named,
    taken_apart,
    updated,
    vectors,
)


def test_gpt_20b_workload_vectors() -> None:
    # b·l = 8,192; d/h = 96; h/tp = 16; v/tp = 50,688 / 4 = 12,672; P2P 4·2,048·6,144/4.
    assert vectors(taken_apart(GPT_20B, PAPER)) == {
        "embedding": (8192, 12672, 6144),
        "layer_norm": (4, 2048, 6144),
        "gemm/qkv": (8192, 6144, 4608),
        "rope": (4, 2048, 16, 16, 96),
        "batched_gemm/attention_scores": (64, 2048, 96, 2048),
        "fused_causal_softmax": (64, 2048, 2048),
        "batched_gemm/attention_values": (64, 2048, 2048, 96),
        "gemm/attention_output": (8192, 1536, 6144),
        "residual_add": (4, 2048, 6144),
        "gemm/mlp_up": (8192, 6144, 6144),
        "gelu": (4, 2048, 6144),
        "gemm/mlp_down": (8192, 6144, 6144),
        "gemm/logits": (8192, 6144, 12672),
        "cross_entropy": (4, 2048, 12672),
        "all_reduce/tensor": (50_331_648, 1, 4),
        "point_to_point/pipeline": (12_582_912, 2, 1),
    }


def test_llama_3_8b_workload_vectors() -> None:
    layout = {"pp": 2, "tp": 2, "dp": 1, "micro_batch": 2, "micro_batches": 8}
    # Linear1 (32 + 2·8)·128/2 = 3,072; gate and up 2·14,336/2; v = 501 · 256, nothing padded.
    assert vectors(taken_apart(LLAMA_3_8B, layout, gpus_per_node=8)) == {
        "embedding": (8192, 64128, 4096),
        "rms_norm": (2, 4096, 4096),
        "gemm/qkv": (8192, 4096, 3072),
        "rope": (2, 4096, 16, 4, 128),
        "flash_attention": (2, 4096, 16, 4, 128),
        "gemm/attention_output": (8192, 2048, 4096),
        "residual_add": (2, 4096, 4096),
        "gemm/mlp_gate_up": (8192, 4096, 14336),
        "swiglu": (2, 4096, 7168),
        "gemm/mlp_down": (8192, 7168, 4096),
        "gemm/logits": (8192, 4096, 64128),
        "cross_entropy": (2, 4096, 64128),
        "all_reduce/tensor": (33_554_432, 1, 2),
        "point_to_point/pipeline": (16_777_216, 1, 2),
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
            "gemm/qkv",
            "rope",
            "batched_gemm/attention_scores",
            "fused_causal_softmax",
            "batched_gemm/attention_values",
            "gemm/attention_output",
            "gemm/mlp_up",
            "gelu",
            "gemm/mlp_down",
        ),
        1,
    ) | {"layer_norm": 2, "residual_add": 2}
    forward = {(name, "forward"): 11 * count for name, count in inner.items()}
    backward = {
        (name, direction): 11 * count
        for name, count in inner.items()
        for direction in (
            ("input_gradient", "weight_gradient") if name.startswith("gemm/") else ("backward",)
        )
    }
    assert counts(parts, 0, Component.LAYER_FORWARD) == forward | {("all_reduce/tensor", "once"): 11}
    assert counts(parts, 0, Component.LAYER_BACKWARD) == backward | {("all_reduce/tensor", "once"): 22}
    assert counts(parts, 0, Component.ENDS_FORWARD) == {
        ("embedding", "forward"): 1,
        ("all_reduce/tensor", "once"): 1,
    }
    assert counts(parts, 0, Component.ENDS_BACKWARD) == {("embedding", "backward"): 1}
    assert counts(parts, 1, Component.ENDS_FORWARD, Component.ENDS_BACKWARD) == {}
    last = ("layer_norm", "gemm/logits", "cross_entropy")
    # The loss combines three entries per token; the logits' input gradients are summed.
    all_reduce = ("all_reduce/tensor", "once")
    assert counts(parts, 3, Component.ENDS_FORWARD) == {(name, "forward"): 1 for name in last} | {
        all_reduce: 3
    }
    assert counts(parts, 3, Component.ENDS_BACKWARD) == {
        ("layer_norm", "backward"): 1,
        ("gemm/logits", "input_gradient"): 1,
        ("gemm/logits", "weight_gradient"): 1,
        ("cross_entropy", "backward"): 1,
        all_reduce: 1,
    }
    assert by_name(ahead(parts.last), "all_reduce/tensor") == [("all_reduce/tensor", (4 * 2048, 1, 4), 3)]


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


def test_update_calls_and_buckets() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    found = [
        [(named(call), call.shape, call.count) for call in listed(updated(parts, stage))]
        for stage in parts.stages
    ]
    # 1,323,987,456 parameters on the first stage: one bucket of 1.26e9 and a rest; 1/8 of them to gather.
    assert found[0] == [
        ("all_reduce/data", (1_260_000_000, 8, 1), 1),
        ("all_reduce/data", (63_987_456, 8, 1), 1),
        ("adam/first_stage", (1_323_987_456, 11), 1),
        ("all_gather/data", (165_498_432, 8, 1), 1),
    ]
    assert found[1][2] == ("adam/middle_stage", (1_359_415_296, 12), 1)
    assert found[3] == [
        ("all_reduce/data", (1_097_430_528, 8, 1), 1),
        ("adam/last_stage", (1_097_430_528, 9), 1),
        ("all_gather/data", (137_178_816, 8, 1), 1),
    ]


def test_exact_buckets_leave_no_rest() -> None:
    parts = taken_apart(GPT_20B, PAPER, bucket_entries=1_323_987_456 // 4)
    assert by_name(updated(parts, parts.stages[0]), "all_reduce/data") == [
        ("all_reduce/data", (330_996_864, 8, 1), 4)
    ]


def test_degrees_of_one_call_no_collective_and_a_single_stage_is_both() -> None:
    parts = taken_apart(GPT_20B, {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1})
    (stage,) = parts.stages
    names = {named(call) for _, call in parts.calls(0)}
    assert stage.layers == 44
    assert not any(OPERATORS[name.partition("/")[0]].is_collective for name in names)
    assert {"embedding", "gemm/logits", "cross_entropy", "adam/last_stage"} <= names
    assert not names & {"adam/first_stage", "adam/middle_stage"}


def test_a_stage_without_layers_calls_none() -> None:
    parts = taken_apart(
        {**GPT_20B, "layers": 1}, {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}
    )
    assert [stage.layers for stage in parts.stages] == [1, 0]
    assert counts(parts, 1, Component.LAYER_FORWARD, Component.LAYER_BACKWARD) == {}
    assert all(call.count > 0 for stage in (0, 1) for _, call in parts.calls(stage))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_all_calls_are_those_of_every_stage(schedule: str) -> None:
    parts = taken_apart(GPT_20B, PAPER | {"schedule": schedule, "recompute": "full", "recompute_layers": 3})

    def totals(calls: Iterable[tuple[Component, Call]]) -> Counter[tuple[Component, Call]]:
        found = Counter[tuple[Component, Call]]()
        for component, call in calls:
            found[component, call._replace(count=1)] += call.count
        return found

    assert totals(parts.all_calls()) == totals(
        one for stage in range(len(parts.stages)) for one in parts.calls(stage)
    )


def test_calls_ask_for_directions_that_have_a_time() -> None:
    for recompute in ("none", "full"):
        parts = taken_apart(GPT_20B, PAPER | {"recompute": recompute})
        for stage in range(4):
            for component, call in parts.calls(stage):
                row = OPERATORS[call.operator]
                assert call.direction in row.directions
                assert call.role in row.roles
                assert len(call.shape) == len(row.features)
                assert row.per_update == (component in COMPUTED_ONCE)


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


def test_pieces_are_made_once() -> None:
    first, second = (taken_apart(GPT_20B, PAPER | {"pp": pp, "dp": 32 // pp}) for pp in (2, 4))
    assert first.layers[0].passes is second.layers[0].passes
    assert first.last.passes is second.last.passes


def test_transfers_by_hand() -> None:
    # b·l·d / tp entries, between two nodes or two devices of one; a single chunk sends nothing.
    for gpus_per_node, pair in ((4, (2, 1)), (128, (1, 2))):
        parts = taken_apart(GPT_20B, PAPER, gpus_per_node=gpus_per_node)
        assert [(named(call), call.shape, call.count) for call in parts.send] == [
            ("point_to_point/pipeline", (12_582_912, *pair), 1)
        ]
    assert taken_apart(GPT_20B, PAPER | {"pp": 1}).send == ()
