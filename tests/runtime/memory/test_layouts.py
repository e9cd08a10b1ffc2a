"""The fullest stages of many layouts at once equal the fullest stage of each layout alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Parallelism, UsageError
from kernelcast.runtime.memory.layouts import largest_stage_bytes
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.step.layouts import RECOMPUTE, Layouts
from tests.runtime.memory.shared_fields import SHARED_FIELDS
from tests.runtime.pipelines import pipelines

MODEL = load_model("llama-2-7b")


@st.composite
def layouts(draw: st.DrawFn) -> Parallelism:
    shape = draw(pipelines(most_pp=12, most_micro_batches=100, most_chunks=2))
    return Parallelism(
        **shape,
        tp=draw(st.sampled_from((1, 2, 4, 8, 16, 32))),
        dp=draw(st.integers(1, 1000)),
        micro_batch=draw(st.integers(1, 64)),
        sequence_parallel=draw(st.booleans()),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        zero=draw(st.integers(0, 3)),
    )


ONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)


def together(found: list[Parallelism], **common: Any) -> Layouts:
    """Layouts that agree in all that a search does not choose."""
    tables = [Layouts.of(one).table for one in (ONE, *found)]
    return Layouts(np.concatenate(tables)[1:], replace(ONE, **common))


in_4_bit = st.fixed_dictionaries(
    {"lora_rank": st.just(4), "frozen_weights": st.sampled_from(("nf4", "nf4_double"))}
)
common = st.one_of(st.fixed_dictionaries({}, optional=SHARED_FIELDS), in_4_bit)


@given(found=st.lists(layouts(), max_size=12), dtype=st.sampled_from(("float16", "float32")), common=common)
@settings(max_examples=80)
def test_together_as_alone(found: list[Parallelism], dtype: str, common: dict[str, Any]) -> None:
    at_once = largest_stage_bytes(MODEL, together(found, **common), dtype=dtype)
    found = [replace(one, **common) for one in found]
    alone = [max(stage.total_bytes for stage in stage_memory(MODEL, one, dtype=dtype)) for one in found]
    # A stage alone has its parts rounded up to whole bytes.
    assert at_once == pytest.approx(alone, rel=1e-12, abs=8)


def test_experts_together_as_alone() -> None:
    model = load_model("mixtral-8x7b")
    common: dict[str, Any] = {"expert_tokens": (1, 2, 3, 4, 5, 6, 7, 8), "expert_capacity": 1.6}
    found = [
        Parallelism(pp=2, tp=1, dp=8, ep=ep, micro_batch=1, micro_batches=4, **common) for ep in (1, 2, 8)
    ]
    at_once = largest_stage_bytes(model, together(found, **common))
    alone = [max(stage.total_bytes for stage in stage_memory(model, one)) for one in found]
    assert at_once == pytest.approx(alone, rel=1e-12, abs=8)


def test_too_many_stages() -> None:
    one = Parallelism(pp=33, tp=1, dp=1, micro_batch=1, micro_batches=1)
    with pytest.raises(UsageError, match=r"^pp is 33, expected from 1 to 32 for 32 layers$"):
        largest_stage_bytes(MODEL, together([one]))
