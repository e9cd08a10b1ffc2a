"""Optional operators: which of them a step calls, and what happens where a bundle lacks them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.sources import left_out
from kernelcast.runtime.answers.warnings import left_out_warning
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.decomposition import Decomposition, decompose

Make = Callable[..., Path]
GPT: dict[str, Any] = {
    "name": "gpt", "hidden_size": 8, "sequence_length": 4, "attention_heads": 2, "layers": 2, "vocabulary_size": 100,
}  # fmt: skip
LLAMA = GPT | {
    "name": "llama",
    "norm": "rms_norm",
    "activation": "swiglu",
    "attention_heads": 4,
    "kv_heads": 2,
}
LAYOUT: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 3, "micro_batches": 2}
OPTIONAL = frozenset(row.name for row in OPERATORS.values() if row.is_optional)
F, B, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE


def parts(model: dict[str, Any], **layout: Any) -> Decomposition:
    return decompose(
        model=ModelConfig(**model),
        parallelism=Parallelism(**LAYOUT | layout),
        cluster=Cluster(gpus_per_node=4),
        bucket_entries=10**9,
    )


def called(found: Decomposition) -> dict[tuple[str, Direction, tuple[int, ...]], int]:
    """Optional calls of one micro-batch and of the update, with their number."""
    counts: dict[tuple[str, Direction, tuple[int, ...]], int] = {}
    for stage in range(len(found.stages)):
        for _, call in found.calls(stage):
            if call.operator in OPTIONAL:
                key = call.operator, call.direction, call.shape
                counts[key] = counts.get(key, 0) + call.count
    return counts


def test_which_are_optional() -> None:
    assert {
        "bias_add", "qkv_split", "embedding_mask", "dropout", "gradient_clip", "gradient_zero",
        "gradient_scale", "copy", "unpermute", "float8_cast", "causal_convolution", "router", "permute",
        "attention_block", "eager_rms_norm", "eager_rope", "eager_swiglu",
    } == OPTIONAL  # fmt: skip


def test_gpt() -> None:
    found = parts(GPT)
    parameters = found.parameters(found.stages[0])
    biases = {
        (12, 24): 2,
        (12, 8): 4,
        (12, 32): 2,
    }  # of 2 layers: QKV; attention output and MLP down; MLP up
    assert called(found) == {
        **{("bias_add", direction, size): count for direction in (F, B) for size, count in biases.items()},
        ("qkv_split", B, (12, 24)): 2,
        ("gradient_clip", ONCE, (parameters,)): 1,
        ("gradient_zero", ONCE, (parameters,)): 1,
    }


def test_tensor_parallelism_narrows_what_is_cut_and_masks_the_embedding() -> None:
    found = called(parts(GPT, tp=2))
    assert {key[2] for key in found if key[0] == "bias_add"} == {(12, 12), (12, 8), (12, 16)}
    assert found["embedding_mask", F, (12, 8)] == found["embedding_mask", B, (12, 8)] == 1
    assert found["qkv_split", B, (12, 12)] == 2


def test_sequence_parallelism_adds_summed_biases_to_its_tokens_only() -> None:
    found = called(parts(GPT, tp=2, sequence_parallel=True))
    assert {key[2] for key in found if key[0] == "bias_add"} == {(12, 12), (6, 8), (12, 16)}


def test_llama_has_no_biases() -> None:
    found = called(parts(LLAMA))
    assert {name for name, _, _ in found} == {"qkv_split", "gradient_clip", "gradient_zero"}
    assert found["qkv_split", B, (12, 16)] == 2


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_a_step_goes_without_all_of_them(make_bundle: Make, model: dict[str, Any]) -> None:
    path = make_bundle(without=OPTIONAL)
    estimate = Estimator.load(path).predict(
        model=ModelConfig(**model), parallelism=Parallelism(**LAYOUT | {"tp": 2})
    )
    # Residual additions answer for biases, masks, gradients put into one tensor, and what passes over gradients.
    answered = {row.operator for row in estimate.operators}
    assert {"rope", "flash_attention", "gemm", "qkv_split", "embedding_mask"} <= answered
    assert {"gradient_clip", "gradient_zero"} <= answered
    assert not any("left out" in str(warning) for warning in estimate.warnings)


def test_left_out_is_what_nothing_answers() -> None:
    every = {(row.name, direction): None for row in OPERATORS.values() for direction in row.directions}
    without_addition = {key: None for key in every if key[0] != "residual_add"}
    assert left_out(every, every) == frozenset()
    one_direction = {key: None for key in without_addition if key not in {("bias_add", B), ("gelu", F)}}
    assert left_out(every, one_direction) == frozenset()  # the other pass answers
    neither = {key: None for key in without_addition if key[0] != "bias_add"}
    assert left_out(every, neither) == {"bias_add"}
    assert left_out([("qkv_split", B)], neither) == frozenset()
    assert left_out(every, {}) == OPTIONAL
    assert left_out((), {}) == frozenset()


def test_a_bundle_without_them_warns_once(make_bundle: Make) -> None:
    model, layout = ModelConfig(**GPT), Parallelism(**LAYOUT)
    times = {"bias_add": 7.0, "qkv_split": 11.0}
    whole = Estimator.load(make_bundle(times)).predict(model=model, parallelism=layout)
    short = Estimator.load(make_bundle(times, without=["gradient_zero"], name="short.kcast"))
    assert whole.warnings == ()
    [warning] = short.predict(model=model, parallelism=layout).warnings
    assert str(warning) == (
        "gradient_zero (once): not in the bundle, answered by residual_add moving as much memory"
    )
    assert left_out_warning(["gradient_zero"]).to_dict() == {
        "cause": "left_out",
        "kind": "left_out",
        "operators": ["gradient_zero"],
        "message": "not in the bundle: gradient_zero: left out of the sum",
    }
    # A layer has 4 biases; forward and backward.
    assert whole.components.layer_forward_s * 1e6 == pytest.approx(110 + 4 * 7)
    assert whole.components.layer_backward_s * 1e6 == pytest.approx(220 + 4 * 7 + 11)


def test_a_missing_direction_is_answered_by_the_other_pass(make_bundle: Make) -> None:
    model, layout = ModelConfig(**GPT), Parallelism(**LAYOUT)
    path = make_bundle({"bias_add": 7.0}, without=[("bias_add", B)], name="half.kcast")
    estimate = Estimator.load(path).predict(model=model, parallelism=layout)
    assert [str(warning) for warning in estimate.warnings] == [
        "bias_add (backward): not in the bundle, answered by forward times the ratio of their work"
    ]
    path = make_bundle({"gelu": 7.0}, without=[("gelu", B)], name="gelu.kcast")
    estimate = Estimator.load(path).predict(model=model, parallelism=layout)
    assert [str(warning) for warning in estimate.warnings] == [
        "gelu (backward): not in the bundle, answered by forward times the ratio of their work"
    ]
    [row] = [row for row in estimate.operators if (row.operator, row.direction) == ("gelu", B)]
    assert row.time_us == pytest.approx(7.0 * 3 / 2)  # three tensors are moved, not two
