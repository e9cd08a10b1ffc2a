"""Supplementary operators that a bundle lacks: what is summed without them, and that it is said."""

from collections.abc import Collection, Set
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.answers.substitutes import is_answered_alike
from kernelcast.runtime.bundle.regressor_entry import Key
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig

UNGROUPED = {"grouped_rope": "rope", "grouped_flash_attention": "flash_attention"}
"""What is asked where a grouped operator is left out, as if there were as many key-value heads as query heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutWarning:
    """Operators of the step that the bundle lacks and the sum therefore does not contain."""

    operators: tuple[str, ...]

    def __str__(self) -> str:
        summed = [name for name in self.operators if name not in UNGROUPED]
        told = [f"{', '.join(summed)}: left out of the sum"] if summed else []
        told += [f"{name}: answered by {UNGROUPED[name]}" for name in self.operators if name in UNGROUPED]
        return f"not in the bundle: {'; '.join(told)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"kind": "left_out", "operators": list(self.operators), "message": str(self)}


def lacking(entries: Collection[Key]) -> frozenset[str]:
    """Supplementary operators without a regressor for every direction among `entries`, or another that answers."""
    return frozenset(
        row.name
        for row in OPERATORS.values()
        if row.supplementary
        and not all((row.name, direction) in entries for direction in row.directions)
        and not is_answered_alike(row, entries)
    )


def left_out_warnings(
    model: ModelConfig, parallelism: Parallelism, left_out: Set[str]
) -> tuple[LeftOutWarning, ...]:
    """One warning, or none, about what of `left_out` a step of `model` would call."""
    if not left_out:
        return ()
    grouped = model.kv_heads != model.attention_heads
    called = {
        "bias_add": model.biases != "none",
        "qkv_split": True,
        "embedding_mask": parallelism.tp > 1,
        "grouped_rope": grouped and model.rotary,
        "grouped_flash_attention": grouped and model.attention == "flash",
        "gradient_zero": True,
        "gradient_clip": True,
    }
    found = tuple(name for name, is_called in called.items() if is_called and name in left_out)
    return (LeftOutWarning(operators=found),) if found else ()
