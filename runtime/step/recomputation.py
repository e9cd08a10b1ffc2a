"""What activation checkpointing runs again in a backward pass of a layer, and in how many layers."""

from collections.abc import Iterable

from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.op import Op, Ops, until_last_needed

_PARTS = {"mlp": ("moe", "moe_act", "shared_experts"), "moe": ("moe_act", "shared_experts")}
"""Modules inside others."""


def with_parts(modules: Iterable[str]) -> frozenset[str]:
    """Modules, and those inside them."""
    return frozenset(part for name in modules for part in (name, *_PARTS.get(name, ())))


def kept_layers(layout: Parallelism, layers: int) -> int:
    """How many of a chunk's layers are not run again: its last ones. Selective checkpointing leaves none out."""
    some = layout.recompute_layers
    return max(0, layers - some) if layout.recompute == "full" and some else 0


def recomputed(layout: Parallelism, ops: Ops) -> tuple[Op, ...]:
    """The ops of a layer whose forward pass its backward pass runs again.

    "full" runs the layer again, "selective" each of `recompute_modules`. With `recompute_early_stop` either ends with
    the last tensor that the backward pass needs.
    """
    if layout.recompute == "none":
        return ()
    of_layer = [one for one in ops if one.in_layer]
    parts = [of_layer]
    if layout.recompute == "selective":
        listed = layout.recompute_modules
        outer = [name for name in listed if not any(name in _PARTS.get(other, ()) for other in listed)]
        parts = [[one for one in of_layer if one.module in with_parts([name])] for name in outer]
    stops = layout.recompute_early_stop
    return tuple(one for part in parts for one in (until_last_needed(part) if stops else part))
