"""Inputs of attention as modules keep them, by hand; other bytes are in test_parameters_and_bytes.py."""

from dataclasses import replace

import pytest

from kernelcast.runtime.step.layers.attention import Attention
from kernelcast.runtime.step.modules import MODULES
from kernelcast.runtime.step.layers.sizes import Kept, Sizes


@pytest.mark.parametrize(
    ("attention", "modules", "width"),
    [
        # The QKV product of 48, with rotated queries of 24 and keys of 12 where its values are a view of it.
        ("flash", "torch", 48 + 24 + 12),
        ("flash", "megatron", 48),
        # An unfused softmax takes keys and values of all 4 heads.
        ("fused_softmax", "torch", 3 * 24),
        ("fused_softmax", "megatron", 3 * 24),
    ],
)
def test_what_leads_to_the_scores(llama: Sizes, attention: str, modules: str, width: int) -> None:
    sizes = replace(llama, model=replace(llama.model, attention=attention))
    kept = Kept(element=2, modules=MODULES[modules])  # type: ignore[index]
    # And the attention output of 24, for 48 tokens.
    assert Attention(sizes).kept_bytes(kept) == 2 * 48 * (width + 24)
