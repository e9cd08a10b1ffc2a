"""What activation checkpointing runs again in a backward pass of a layer, and in how many layers."""

from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.op import Op, Ops, until_last_needed


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
        parts = [[one for one in of_layer if one.module == name] for name in layout.recompute_modules]
    stops = layout.recompute_early_stop
    return tuple(one for part in parts for one in (until_last_needed(part) if stops else part))
