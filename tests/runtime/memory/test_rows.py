"""What devices of many layouts hold, where ends of the model have layers of their own, and where experts are cut."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import Parallelism
from kernelcast.runtime.memory.layouts import largest_stage_bytes
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.step.chunks import AS_SPLIT, with_ends
from tests.runtime.memory.test_layouts import together


@pytest.mark.parametrize("ends", [(8, 8), (12, 4), (4, 12), (0, 8), (8, 0), (14, 2)])
def test_layers_of_the_ends(ends: tuple[int, int]) -> None:
    model = load_model("llama-2-7b")
    even = Parallelism(pp=4, tp=1, dp=2, micro_batch=1, micro_batches=8)
    full = replace(even, recompute="full")
    chosen = np.array([[AS_SPLIT, end, AS_SPLIT] for end in ends])
    found = largest_stage_bytes(
        model, together([even, even, full]).with_ends(chosen, model.layers), dtype="bfloat16"
    )
    layouts = [even, replace(even, layer_counts=with_ends(32, 4, *ends)), full]
    largest = [
        max(stage.total_bytes for stage in stage_memory(model, one, dtype="bfloat16")) for one in layouts
    ]
    assert found == pytest.approx(largest, abs=8)


def test_experts_that_are_cut_are_sharded_like_those_that_are_spread() -> None:
    # A quarter of the experts, or half of every second one: in both cases two devices hold the same.
    given: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 8, "micro_batch": 1, "micro_batches": 1}
    for zero in range(4):
        spread, cut = (
            stage_memory(
                load_model("mixtral-8x7b"),
                Parallelism(**given, zero=zero, ep=ep, expert_tp=expert_tp),
                dtype="bfloat16",
            )[0]
            for ep, expert_tp in ((4, 1), (2, 2))
        )
        for name in ("parameters", "weights_bytes", "gradients_bytes", "optimizer_bytes"):
            assert getattr(spread, name) == getattr(cut, name)
