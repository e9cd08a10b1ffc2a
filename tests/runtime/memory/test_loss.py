"""What every kind of loss holds of the logits, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Parallelism
from kernelcast.runtime.memory.stages import StageMemory, stage_memory
from kernelcast.runtime.request.models import load_model

# A layer so narrow that the loss, or the output product after it, is the fullest moment: 8192 tokens of 4096.
MODEL = replace(load_model("llama-2-7b"), layers=1, sequence_length=8192, mlp_size=32)
TOKENS, HIDDEN, VOCABULARY = 8192, 4096, 32_000
LOGITS = TOKENS * VOCABULARY
BUFFERS = 2 * 8 * TOKENS + 2 * 4 * 8192 * 128  # token ids and labels, rotary tables


def stage(dtype: str = "bfloat16", **layout: Any) -> StageMemory:
    given: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}
    return stage_memory(MODEL, Parallelism(**(given | layout)), dtype=dtype)[-1]


def after(tp: int = 1, element: int = 2) -> int:
    """At the output product: the gradients of its weights and of the hidden state."""
    return element * (VOCABULARY // tp * HIDDEN + TOKENS * HIDDEN)


@pytest.mark.parametrize("tp", [1, 2])
def test_with_torchs_modules(tp: int) -> None:
    # Vocabulary-parallel: 32,000 is padded to a multiple of 128 · tp, which it is.
    plain, fused, in_place = (stage(loss=loss, tp=tp) for loss in ("plain", "fused", "in_place"))
    cut = LOGITS // tp
    # Logits of 2 bytes and log-probabilities of 4, then two gradients of 4; one gradient of 2; none of its own.
    assert [one.logits_bytes for one in (plain, fused, in_place)] == [6 * cut, 2 * cut, 2 * cut]
    assert plain.working_bytes == 8 * cut + BUFFERS
    assert fused.working_bytes == 2 * cut + after(tp) + BUFFERS
    assert in_place.working_bytes == after(tp) + BUFFERS
    # Log-probabilities are freed before the output product's gradients exist, so these are no larger than the loss.
    assert 6 * cut + plain.working_bytes > 2 * cut + 2 * cut + after(tp)


@pytest.mark.parametrize("tp", [1, 2])
def test_with_megatrons_modules(tp: int) -> None:
    plain, fused, in_place = (
        stage(loss=loss, tp=tp, kept_by="megatron") for loss in ("plain", "fused", "in_place")
    )
    cut, width = LOGITS // tp, 4096 // tp
    # Probabilities in fp32 in the place of logits; their gradient is written over them, and copied to 2 bytes.
    assert [one.logits_bytes for one in (plain, fused, in_place)] == [4 * cut, 2 * cut, 2 * cut]
    unused = 2 * (4 * width * HIDDEN + 3 * 32 // tp * HIDDEN)
    assert plain.working_bytes == 2 * cut + unused + BUFFERS
    # The output product makes its weight gradient in 2 bytes all the same: it is none of TransformerEngine's.
    assert fused.working_bytes == 2 * cut + after(tp) + unused + BUFFERS
    assert in_place.working_bytes == after(tp) + unused + BUFFERS


def test_in_fp32() -> None:
    torch, megatron = (stage("float32", kept_by=modules) for modules in ("torch", "megatron"))
    assert torch.logits_bytes == 8 * LOGITS  # logits and log-probabilities
    assert torch.working_bytes == 8 * LOGITS + BUFFERS
    assert megatron.logits_bytes == 4 * LOGITS
    # No copy of the gradient; the output product's fullest moment has it where the probabilities were.
    unused = 4 * (4 * 4096 * HIDDEN + 3 * 32 * HIDDEN)
    assert megatron.working_bytes == after(element=4) + unused + BUFFERS


def test_every_micro_batch_in_flight_has_its_own() -> None:
    for loss, each in (("plain", 6), ("fused", 2), ("in_place", 2)):
        gpipe = stage(loss=loss, micro_batches=3, schedule="gpipe")
        assert gpipe.logits_bytes == 3 * each * LOGITS
    assert stage(kept_by="megatron", micro_batches=3, schedule="gpipe").logits_bytes == 3 * 4 * LOGITS
    # Two weight gradients are late on the last of three stages: they keep the logits' gradients.
    late = {"pp": 2, "layer_counts": (1, 0), "micro_batches": 3, "schedule": "zero_bubble"}
    assert stage(kept_by="megatron", **late).logits_bytes == (4 + 2) * LOGITS
    assert stage(kept_by="torch", **late).logits_bytes == (6 + 2) * LOGITS


def test_earlier_stages_have_none() -> None:
    for modules in ("torch", "megatron"):
        found = {
            stage_memory(
                replace(MODEL, layers=2),
                Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=2, loss=loss, kept_by=modules),
            )[0]
            for loss in ("plain", "fused", "in_place")
        }
        assert len(found) == 1
