"""What a stage calls, on what and how often, by hand from docs/method.md."""

from collections.abc import Iterable
from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.calls import ONCE_PER_UPDATE, Call, Component
from kernelcast.runtime.step.decomposition import Decomposition, decompose

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
PAPER = {"pp": 4, "tp": 4, "dp": 8, "micro_batch": 4, "micro_batches": 16, "layer_split": "paper"}


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


def named(call: Call) -> str:
    """The operator, with its role where it has several."""
    return f"{call.operator}/{call.role}" if call.role else call.operator


def listed(calls: Iterable[Call]) -> list[Call]:
    """Those that the paper's Table I lists; the others are in answers/test_left_out.py."""
    return [call for call in calls if not OPERATORS[call.operator].is_optional]


def vectors(parts: Decomposition) -> dict[str, tuple[int, ...]]:
    """Operators with one vector wherever they are called, without updates and the loss's all-reduces."""
    loss = set(parts.last.forward)
    found = {
        (named(call), call.shape)
        for stage in range(len(parts.stages))
        for component, call in parts.calls(stage)
        if component not in ONCE_PER_UPDATE
        if call in listed([call]) and not (call.operator == "all_reduce" and call in loss)
    }
    assert len(dict(found)) == len(found)
    return dict(found)


def counts(parts: Decomposition, stage: int, *components: Component) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for component, call in parts.calls(stage):
        if component in components and call in listed([call]):
            key = named(call), call.direction.value
            found[key] = found.get(key, 0) + call.count
    return found


def by_name(calls: Iterable[Call], *names: str) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, vector and number of the calls of some operators."""
    return [(named(call), call.shape, call.count) for call in calls if named(call) in names]


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
    assert by_name(parts.last.forward, "all_reduce/tensor") == [("all_reduce/tensor", (4 * 2048, 1, 4), 3)]


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
    for direction in ("forward", "input_gradient", "weight_gradient"):
        assert again["gemm/qkv", direction] == 9
    assert again["rms_norm", "forward"] == 18
    assert again["all_reduce/tensor", "once"] == 9 * (2 + 2)
    assert counts(parts, 0, Component.ENDS_BACKWARD) == {("embedding", "backward"): 1}
    # It comes last, and the ends run nothing again.
    assert parts.layer.backward == (*plain.layer.backward, *plain.layer.forward)
    assert (parts.first, parts.last) == (plain.first, plain.last)


def test_update_calls_and_buckets() -> None:
    parts = taken_apart(GPT_20B, PAPER)
    found = [
        [(named(call), call.shape, call.count) for call in listed(parts.update(stage).calls)]
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
    assert by_name(parts.update(parts.stages[0]).calls, "all_reduce/data") == [
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


def test_calls_ask_for_directions_that_have_a_time() -> None:
    for recompute in ("none", "full"):
        parts = taken_apart(GPT_20B, PAPER | {"recompute": recompute})
        for stage in range(4):
            for component, call in parts.calls(stage):
                row = OPERATORS[call.operator]
                assert call.direction in row.directions
                assert call.role in row.roles
                assert len(call.shape) == len(row.features)
                assert row.per_update == (component is Component.OPTIMIZER)


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


def test_sequence_parallelism_by_hand() -> None:
    # b·l·d = 4 · 2,048 · 6,144 = 50,331,648 entries; a device of 4 holds 12,582,912, and 512 tokens.
    parts = taken_apart(GPT_20B, PAPER | {"sequence_parallel": True})
    collectives = ("all_reduce/tensor", "all_gather/tensor", "reduce_scatter/tensor")
    gather, scatter = ("all_gather/tensor", (12_582_912, 1, 4)), ("reduce_scatter/tensor", (50_331_648, 1, 4))
    assert by_name(parts.layer.forward, *collectives) == [(*gather, 1), (*scatter, 1)]
    assert by_name(parts.layer.backward, *collectives) == [(*gather, 2), (*scatter, 2)]
    for block, count in ((parts.layer, 2), (parts.last, 1)):
        for calls in (block.forward, block.backward):
            assert by_name(calls, "layer_norm") == [("layer_norm", (4, 512, 6144), count)]
    assert by_name(parts.layer.forward, "residual_add") == [("residual_add", (4, 512, 6144), 2)]
    # Between the collectives every device has all tokens.
    assert by_name(parts.layer.forward, "gelu") == [("gelu", (4, 2048, 6144), 1)]
    assert by_name(parts.first.forward, *collectives) == [(*scatter, 1)]
    assert by_name(parts.first.backward, *collectives) == [(*gather, 1)]
    loss = ("all_reduce/tensor", (4 * 2048, 1, 4), 3)
    assert by_name(parts.last.forward, *collectives) == [(*gather, 1), loss]
    assert by_name(parts.last.backward, *collectives) == [(*scatter, 1)]
    # Backward passes gather the products' inputs again: one that queries, keys, values and MLP share, and the logits'.
    again = {
        name: [
            (by_name(one.collective, *collectives), [call.role for call in one.compute])
            for one in getattr(parts, name).beside
            if one.collective
        ]
        for name in ("first", "layer", "last")
    }
    assert again == {
        "first": [],
        "layer": [([(*gather, 1)], ["qkv", "mlp_up"])],
        "last": [([(*gather, 1)], ["logits"])],
    }
    two = taken_apart(LLAMA_3_8B, PAPER | {"sequence_parallel": True, "pp": 1})
    assert [[call.role for call in one.compute] for one in two.layer.beside if one.compute] == [
        ["qkv"],
        ["mlp_gate_up"],
    ]
    plain = taken_apart(LLAMA_3_8B, PAPER | {"pp": 1})
    assert not any(one.collective or one.compute for one in plain.layer.beside)


def test_sequence_parallelism_of_one_device_changes_nothing() -> None:
    one = PAPER | {"tp": 1}
    cut, whole = (taken_apart(GPT_20B, one | {"sequence_parallel": flag}) for flag in (True, False))
    for stage in range(4):
        assert list(cut.calls(stage)) == list(whole.calls(stage))


@pytest.mark.parametrize(
    ("attention", "again"),
    [
        ("flash", {"flash_attention"}),
        (
            "fused_softmax",
            {"batched_gemm/attention_scores", "fused_causal_softmax", "batched_gemm/attention_values"},
        ),
        (
            "unfused",
            {"batched_gemm/attention_scores", "causal_mask_fill", "softmax", "batched_gemm/attention_values"},
        ),
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
    assert {named(call) for call in added} == again
    assert {(call.direction, call.count) for call in added} == {(Direction.FORWARD, 1)}


def test_virtual_stages() -> None:
    layout = PAPER | {"schedule": "interleaved", "virtual_stages": 2}
    parts = taken_apart(GPT_20B, layout)
    # 49 blocks on 8 chunks; chunk c is on stage c mod 4.
    assert [sum(chunk.counts) for chunk in parts.chunks] == [5, 6, 6, 6, 6, 6, 6, 3]
    assert [chunk.stage for chunk in parts.chunks] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [stage.layers for stage in parts.stages] == [11, 12, 12, 9]
    # The first chunk receives nothing and the last one sends nothing on; all others do both.
    for stage, forward, backward in ((0, 2, 1), (1, 2, 2), (3, 1, 2)):
        assert counts(parts, stage, Component.SEND_FORWARD) == {("point_to_point/pipeline", "once"): forward}
        assert counts(parts, stage, Component.SEND_BACKWARD) == {
            ("point_to_point/pipeline", "once"): backward
        }
    plain = taken_apart(GPT_20B, PAPER)
    assert [parts.update(stage) for stage in parts.stages] == [plain.update(stage) for stage in plain.stages]


def test_layers_by_hand() -> None:
    parts = taken_apart(GPT_20B, PAPER | {"layer_counts": (0, 20, 24, 0)})
    assert [stage.layers for stage in parts.stages] == [0, 20, 24, 0]
    assert counts(parts, 0, Component.LAYER_FORWARD) == {}
    assert counts(parts, 2, Component.LAYER_FORWARD)["gemm/qkv", "forward"] == 24


def test_weight_gradients_are_the_linears_own() -> None:
    parts = taken_apart(GPT_20B, PAPER | {"schedule": "zero_bubble", "recompute": "full"})
    assert parts.is_split
    assert not taken_apart(GPT_20B, PAPER).is_split

    def of(direction: Direction, calls: Iterable[Call]) -> list[str]:
        return [named(call) for call in calls if call.direction is direction]

    linears = ["gemm/qkv", "gemm/attention_output", "gemm/mlp_up", "gemm/mlp_down"]
    for direction in (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT):
        assert of(direction, parts.layer.backward) == linears
        assert of(direction, parts.last.backward) == ["gemm/logits"]
        assert of(direction, parts.first.backward) == []
    # By the operator table: each of the two products does what the forward one does.
    vector, row = (8192, 6144, 4608), OPERATORS["gemm"]
    for direction in (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT):
        assert row.flops(direction, vector) == row.flops(Direction.FORWARD, vector)


def test_pieces_are_made_once() -> None:
    first, second = (taken_apart(GPT_20B, PAPER | {"pp": pp, "dp": 32 // pp}) for pp in (2, 4))
    assert first.layer.forward is second.layer.forward
    assert first.last.backward is second.last.backward


def test_transfers_by_hand() -> None:
    # b·l·d / tp entries, between two nodes or two devices of one; a single chunk sends nothing.
    for gpus_per_node, pair in ((4, (2, 1)), (128, (1, 2))):
        parts = taken_apart(GPT_20B, PAPER, gpus_per_node=gpus_per_node)
        assert [(named(call), call.shape, call.count) for call in parts.send] == [
            ("point_to_point/pipeline", (12_582_912, *pair), 1)
        ]
    assert taken_apart(GPT_20B, PAPER | {"pp": 1}).send == ()
