"""Bytes of logits and of their gradients by kind of loss and by modules, by hand."""

import pytest

from kernelcast.runtime.memory.contents import LossContents
from kernelcast.runtime.step.layers.loss import logit_entries
from kernelcast.runtime.step.modules import MODULES
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import changed

LOGITS = 15 * 128


@pytest.mark.parametrize(
    ("kind", "modules", "element", "logits", "log_probabilities", "gradients"),
    [
        # Bytes per logit: kept, log-probabilities, gradients at the loss and after it.
        ("plain", "torch", 2, 2, 4, (8, 2)),
        ("plain", "torch", 4, 4, 4, (8, 4)),
        # Probabilities in the place of logits; a copy of their gradient in 2 bytes, none in 4.
        ("plain", "megatron", 2, 0, 4, (2, 2)),
        ("plain", "megatron", 4, 0, 4, (0, 4)),
        ("fused", "torch", 2, 2, 0, (2, 2)),
        ("fused", "megatron", 4, 4, 0, (4, 4)),
        ("in_place", "torch", 2, 2, 0, (0, 0)),
        ("in_place", "megatron", 2, 2, 0, (0, 0)),
    ],
)
def test_bytes_of_logits(
    gpt: Sizes,
    kind: str,
    modules: str,
    element: int,
    logits: int,
    log_probabilities: int,
    gradients: tuple[int, int],
) -> None:
    sizes = changed(gpt, element_bytes=element, loss=kind, kept_by=modules)
    found = LossContents.of(sizes)
    assert logit_entries(sizes) == LOGITS
    assert found.logits == logits * LOGITS
    assert found.log_probabilities == log_probabilities * LOGITS
    assert found.gradients == tuple(each * LOGITS for each in gradients)


def test_facts_about_modules() -> None:
    torch, megatron = MODULES["torch"], MODULES["megatron"]
    flags = ("copies_attention_inputs", "fuses_gate", "accumulates_in_products", "reuses_loss")
    assert [getattr(torch, flag) for flag in flags] == [False] * 4
    assert [getattr(megatron, flag) for flag in flags] == [True] * 4
    assert (torch.kept_results, megatron.kept_results) == (2, 0)
