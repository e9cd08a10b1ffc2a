"""What recomputation, sequence parallelism and schedules change in what a stage calls, by hand."""

from collections.abc import Iterable

import pytest

from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.decomposition import Block
from kernelcast.runtime.step.op import Call, Component
from tests.runtime.step.published_jobs import (
    GPT_20B,
    LLAMA_3_8B,
    PAPER,
    ahead,
    back,
    by_name,
    counts,
    named,
    taken_apart,
)


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
    assert back(parts.layers[0]) == (*back(plain.layers[0]), *ahead(plain.layers[0]))
    for end, other in ((parts.first, plain.first), (parts.last, plain.last)):
        assert (end.passes, end.recomputed.calls) == (other.passes, ())


def test_sequence_parallelism_by_hand() -> None:
    # b·l·d = 4 · 2,048 · 6,144 = 50,331,648 entries; a device of 4 holds 12,582,912, and 512 tokens.
    parts = taken_apart(GPT_20B, PAPER | {"sequence_parallel": True})
    [layer] = parts.layers
    collectives = ("all_reduce/tensor", "all_gather/tensor", "reduce_scatter/tensor")
    gather, scatter = ("all_gather/tensor", (12_582_912, 1, 4)), ("reduce_scatter/tensor", (50_331_648, 1, 4))
    assert by_name(ahead(layer), *collectives) == [(*gather, 1), (*scatter, 1)]
    assert by_name(back(layer), *collectives) == [(*gather, 2), (*scatter, 2)]
    for block, count in ((layer, 2), (parts.last, 1)):
        for calls in (ahead(block), back(block)):
            assert by_name(calls, "layer_norm") == [("layer_norm", (4, 512, 6144), count)]
    assert by_name(ahead(layer), "residual_add") == [("residual_add", (4, 512, 6144), 2)]
    # Between the collectives every device has all tokens.
    assert by_name(ahead(layer), "gelu") == [("gelu", (4, 2048, 6144), 1)]
    assert by_name(ahead(parts.first), *collectives) == [(*scatter, 1)]
    assert by_name(back(parts.first), *collectives) == [(*gather, 1)]
    loss = ("all_reduce/tensor", (4 * 2048, 1, 4), 3)
    assert by_name(ahead(parts.last), *collectives) == [(*gather, 1), loss]
    assert by_name(back(parts.last), *collectives) == [(*scatter, 1)]

    # Backward passes gather the products' inputs again: one that queries, keys, values and MLP share, and the logits'.
    def again(block: Block) -> list[tuple[object, list[str]]]:
        assert not block.passes.forward.overlapped
        return [
            (by_name(pair.collectives, *collectives), [call.role for call in pair.compute])
            for pair in block.passes.backward.overlapped.values()
        ]

    assert again(parts.first) == []
    assert again(layer) == [([(*gather, 1)], ["qkv", "mlp_up"])]
    assert again(parts.last) == [([(*gather, 1)], ["logits"])]
    [of_two] = taken_apart(LLAMA_3_8B, PAPER | {"sequence_parallel": True, "pp": 1}).layers
    assert [roles for _, roles in again(of_two)] == [["qkv"], ["mlp_gate_up"]]
    [plain] = taken_apart(LLAMA_3_8B, PAPER | {"pp": 1}).layers
    assert again(plain) == []


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
        back(taken_apart(model, PAPER | {"recompute": recompute}).layers[0])
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
        assert of(direction, back(parts.layers[0])) == linears
        assert of(direction, back(parts.last)) == ["gemm/logits"]
        assert of(direction, back(parts.first)) == []
    # By the operator table: each of the two products does what the forward one does.
    vector, row = (8192, 6144, 4608), OPERATORS["gemm"]
    for direction in (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT):
        assert row.flops(direction, vector) == row.flops(Direction.FORWARD, vector)
