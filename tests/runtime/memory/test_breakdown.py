"""Laws of memory by op: the bytes of single ops add up to the whole."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.memory.breakdown import PARTS, memory_breakdown
from kernelcast.runtime.memory.contents import op_names
from kernelcast.runtime.memory.stages import bytes_by_stage, stage_memory
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.step.parameters import total_parameters
from tests.runtime.memory.test_stages import asked

ONE: dict[str, Any] = {
    "pp": 1,
    "tp": 1,
    "dp": 1,
    "micro_batch": 1,
    "micro_batches": 1,
    "vocabulary_multiple": 1,
}


@given(asked())
@settings(max_examples=15)
def test_ops_add_up_to_the_whole(question: tuple[ModelConfig, Parallelism, dict[str, Any]]) -> None:
    model, layout, options = question
    # 8-bit copies are gathered of the largest layer, whichever op is explained.
    layout = replace(layout, fp8_recipe="none", fp8_dispatch=False, fp8_weights=False)
    _, whole = bytes_by_stage(model, layout, **options)
    names = op_names(model, layout)
    alone = [bytes_by_stage(model, layout, only=name, **options)[1] for name in names]
    for part in PARTS[:5]:
        found = sum(np.broadcast_to(getattr(one, part), layout.pp) for one in alone)
        # Shards of each are rounded up.
        np.testing.assert_allclose(found, getattr(whole, part), rtol=1e-9, atol=64.0 * len(names))


@given(asked())
@settings(max_examples=15)
def test_sizes_by_op_sum_to_every_part(question: tuple[ModelConfig, Parallelism, dict[str, Any]]) -> None:
    model, layout, options = question
    stages = stage_memory(model, layout, **options)
    for stage, found in zip(stages, memory_breakdown(model, layout, **options), strict=True):
        assert found.stage == stage.stage
        assert sum(one.size_bytes for one in found.ops) == stage.total_bytes
        for part in PARTS:
            sizes = [one.size_bytes for one in found.ops if one.part == part]
            assert sum(sizes) == getattr(stage, f"{part}_bytes")
        held = {one.op for one in found.ops if one.part == "weights"}
        assert held.isdisjoint(
            {"layer_input", "attention_residual", "rope", "mlp_activation", "cross_entropy"}
        )


@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b"])
def test_experts_and_further_predictions(name: str) -> None:
    model, layout = load_model(name), Parallelism(**ONE | {"ep": 8, "dp": 8, "zero": 1})
    [stage], [found] = (of(model, layout, dtype="bfloat16") for of in (stage_memory, memory_breakdown))
    assert sum(one.size_bytes for one in found.ops) == stage.total_bytes
    experts = sum(
        one.size_bytes for one in found.ops if one.part == "weights" and one.op.startswith("expert")
    )
    assert 0.5 * stage.weights_bytes < experts < stage.weights_bytes


def test_by_hand() -> None:
    model = load_model("llama-2-7b")
    [found] = memory_breakdown(model, Parallelism(**ONE), dtype="bfloat16")
    sizes = {(one.part, one.op): one.size_bytes for one in found.ops}
    assert sizes["weights", "embedding"] == 2 * 32_000 * 4096
    assert sizes["optimizer", "qkv"] == 12 * 32 * 3 * 4096 * 4096
    assert sizes["activations", "layer_input"] == 2 * 32 * model.sequence_length * 4096
    assert sizes["logits", "cross_entropy"] == 4 * 32_000 * model.sequence_length
    weights = sum(size for (part, _), size in sizes.items() if part == "weights")
    assert weights == 2 * total_parameters(model)
    assert (found.moment, found.in_flight) == ("loss", 1)
    # The first of four stages has four micro-batches in flight, the last one.
    stages = memory_breakdown(model, Parallelism(**ONE | {"pp": 4, "micro_batches": 8}), dtype="bfloat16")
    assert [one.in_flight for one in stages] == [4, 3, 2, 1]
    assert [one.moment for one in stages] == ["MLP", "MLP", "MLP", "loss"]
    assert [(one.chunk, one.micro_batch) for one in stages] == [(stage, 0) for stage in range(4)]
    # Interleaved: the fullest backward passes are of the stage's last chunk.
    more = {"pp": 4, "micro_batches": 8, "schedule": "interleaved", "virtual_stages": 2}
    stages = memory_breakdown(model, Parallelism(**ONE | more), dtype="bfloat16")
    assert [one.chunk for one in stages] == [4, 5, 6, 7]
