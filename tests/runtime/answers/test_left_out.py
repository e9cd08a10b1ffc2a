"""Supplementary operators: which of them a step calls, and what happens where a bundle lacks them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.left_out import lacking
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
SUPPLEMENTARY = frozenset(row.name for row in OPERATORS.values() if row.supplementary)
F, B, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE


def parts(model: dict[str, Any], left_out: frozenset[str] = frozenset(), **layout: Any) -> Decomposition:
    return decompose(
        model=ModelConfig(**model),
        parallelism=Parallelism(**LAYOUT | layout),
        cluster=Cluster(gpus_per_node=4),
        bucket_entries=10**9,
        left_out=left_out,
    )


def called(found: Decomposition) -> dict[tuple[str, Direction, tuple[int, ...]], int]:
    """Supplementary calls of one micro-batch and of the update, with their number."""
    counts: dict[tuple[str, Direction, tuple[int, ...]], int] = {}
    for stage in found.stages:
        for call in found.calls(stage):
            if call.operator in SUPPLEMENTARY:
                key = call.operator, call.direction, call.vector
                counts[key] = counts.get(key, 0) + call.count
    return counts


def test_gpt() -> None:
    found = parts(GPT)
    parameters = found.stages[0].parameters
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


def test_llama_has_no_biases_and_grouped_attention() -> None:
    found = called(parts(LLAMA))
    assert {name for name, _, _ in found} == {
        "qkv_split", "grouped_rope", "grouped_flash_attention", "gradient_clip", "gradient_zero",
    }  # fmt: skip
    assert found["grouped_flash_attention", F, (3, 4, 4, 2, 2)] == 2
    assert found["qkv_split", B, (12, 16)] == 2


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_left_out(model: dict[str, Any]) -> None:
    found = parts(model, SUPPLEMENTARY, tp=2)
    assert called(found) == {}
    names = {call.operator for stage in found.stages for call in found.calls(stage)}
    assert {"rope", "flash_attention"} <= names


def test_lacking_is_whoever_misses_a_direction() -> None:
    every = {(row.name, direction) for row in OPERATORS.values() for direction in row.directions}
    assert lacking(every) == frozenset()
    assert lacking(every - {("grouped_rope", B), ("gelu", F)}) == {"grouped_rope"}
    assert lacking(()) == SUPPLEMENTARY


def test_a_bundle_without_them_says_so_once_and_is_that_much_shorter(make_bundle: Make) -> None:
    model, layout = ModelConfig(**GPT), Parallelism(**LAYOUT)
    times = {"bias_add": 7.0, "qkv_split": 11.0, "gradient_zero": 13.0}
    kept = {"bias_add": 7.0, "qkv_split": 11.0}
    whole = Estimator.load(make_bundle(times)).predict(model=model, parallelism=layout)
    short = Estimator.load(make_bundle(kept, without=["gradient_zero"], name="short.kcast")).predict(
        model=model, parallelism=layout
    )
    assert whole.warnings == ()
    (warning,) = short.warnings
    assert str(warning) == "not in the bundle: gradient_zero: left out of the sum"
    assert warning.to_dict()["kind"] == "left_out"
    assert (whole.step_time_s - short.step_time_s) * 1e6 == pytest.approx(13)
    # A layer has 4 biases; forward and backward.
    assert whole.components.layer_forward_s * 1e6 == pytest.approx(110 + 4 * 7)
    assert whole.components.layer_backward_s * 1e6 == pytest.approx(220 + 4 * 7 + 11)


def test_grouped_attention_is_answered_by_the_ungrouped(make_bundle: Make) -> None:
    model, layout = ModelConfig(**LLAMA), Parallelism(**LAYOUT)
    bundle = make_bundle({"flash_attention": 5.0}, without=["grouped_flash_attention"])
    estimate = Estimator.load(bundle).predict(model=model, parallelism=layout)
    (warning,) = estimate.warnings
    assert str(warning) == "not in the bundle: grouped_flash_attention: answered by flash_attention"
    assert any(key[0] == "flash_attention" for key, _ in estimate.answers)
