"""Laws of memory along the passes of a step, and one by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.memory.over_step import StageMemoryOverStep, memory_over_step
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.pipeline.schedules import stage_orders
from kernelcast.runtime.request.models import load_model
from tests.runtime.memory.test_breakdown import ONE
from tests.runtime.memory.test_stages import asked


def over_step(model: ModelConfig, layout: Parallelism, **options: Any) -> tuple[StageMemoryOverStep, ...]:
    sizes = (layout.pp, layout.micro_batches, layout.virtual_stages)
    return memory_over_step(model, layout, stage_orders(layout.schedule, *sizes), **options)


@given(asked())
@settings(max_examples=50)
def test_no_moment_has_more_than_the_total(
    question: tuple[ModelConfig, Parallelism, dict[str, Any]],
) -> None:
    model, layout, options = question
    for stage, found in zip(
        stage_memory(model, layout, **options), over_step(model, layout, **options), strict=True
    ):
        # Beyond 2^53 bytes sums are rounded in another order.
        assert found.peak_bytes <= stage.total_bytes * (1 + 1e-12)
        if layout.schedule in ("gpipe", "1f1b"):  # one chunk: all is at its most at once
            assert found.peak_bytes == pytest.approx(stage.total_bytes, rel=1e-12, abs=8)
        assert found.kept_bytes[0] == found.kept_bytes[-1]
        assert found.kept_bytes[0] == 0 or layout.kept_by == "torchtitan"  # buffers of what it receives
        assert found.kept_bytes.min() >= 0


def test_by_hand() -> None:
    model = load_model("llama-2-7b")
    layout = Parallelism(**ONE | {"pp": 4, "micro_batches": 6})
    stages = stage_memory(model, layout, dtype="bfloat16")
    found = over_step(model, layout, dtype="bfloat16")
    # 1F1B: stage s runs 4 - s forward passes, then its first backward pass, which is the fullest.
    assert [one.peak_pass for one in found] == [4, 3, 2, 1]
    second = stages[1].activations_bytes / 3
    kept = [0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 2, 1, 0]
    np.testing.assert_allclose(found[1].kept_bytes, np.multiply(kept, second), rtol=1e-6)
    is_backward = [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1]
    np.testing.assert_allclose(
        found[1].working_bytes, np.multiply(is_backward, stages[1].working_bytes), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("schedule", "virtual_stages"), [("interleaved", 2), ("zero_bubble", 1), ("zb_v", 2), ("dualpipe_v", 2)]
)
def test_schedules_of_several_chunks_come_near_their_total(schedule: str, virtual_stages: int) -> None:
    model = load_model("llama-2-7b")
    more = {"pp": 4, "micro_batches": 16, "schedule": schedule, "virtual_stages": virtual_stages}
    layout = Parallelism(**ONE | more)
    for stage, found in zip(
        stage_memory(model, layout, dtype="bfloat16"),
        over_step(model, layout, dtype="bfloat16"),
        strict=True,
    ):
        assert 0.9 * stage.total_bytes < found.peak_bytes <= stage.total_bytes
