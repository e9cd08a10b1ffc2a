"""What activation checkpointing runs again in a backward pass of a layer, and in how many layers."""

from collections.abc import Iterable, Iterator

from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.op import Op, Ops, until_last_needed

_PARTS = {"mlp": ("moe", "moe_act", "shared_experts"), "moe": ("moe_act", "shared_experts")}
"""Modules inside others."""
PER_OP = "per_op"
"""Not a module: every layer by torchtitan's list of saved operators."""


def with_parts(modules: Iterable[str]) -> frozenset[str]:
    """Modules, and those inside them."""
    return frozenset(part for name in modules for part in (name, *_PARTS.get(name, ())))


def kept_layers(layout: Parallelism, layers: int) -> int:
    """How many of a chunk's layers are not run again: its last ones. Selective checkpointing leaves none out."""
    some = layout.recompute_layers
    return max(0, layers - some) if layout.recompute == "full" and some else 0


def _unsaved(ops: Iterable[Op]) -> Iterator[Op]:
    """What torchtitan's selective checkpointing per operator runs again: all but attention, sums that are scattered and
    every second product. Products in 8 bit are not on its list (torchtitan's `_save_list`).
    """
    place = 0
    for one in ops:
        call, weight = one.call, one.weight
        if one.module == "core_attn" or call is None or call.operator == "reduce_scatter":
            continue
        if weight is not None and "float8" not in call.operator:
            columns = weight.columns or (weight.n,)
            again = sum(width for index, width in enumerate(columns, place) if index % 2)
            place += len(columns)
            if not again:
                continue
            one = one._replace(call=call._replace(shape=(*call.shape[:-1], int(again))))
        yield one


def recomputed(layout: Parallelism, ops: Ops) -> tuple[Op, ...]:
    """The ops of a layer whose forward pass its backward pass runs again.

    "full" runs the layer again, "selective" each of `recompute_modules`, or by operator. With `recompute_early_stop`
    either ends with the last tensor that the backward pass needs.
    """
    if layout.recompute == "none":
        return ()
    of_layer = [one for one in ops if one.in_layer]
    parts = [of_layer]
    if layout.recompute == "selective" and PER_OP in layout.recompute_modules:
        return tuple(_unsaved(of_layer))
    if layout.recompute == "selective":
        listed = layout.recompute_modules
        outer = [name for name in listed if not any(name in _PARTS.get(other, ()) for other in listed)]
        parts = [[one for one in of_layer if one.module in with_parts([name])] for name in outer]
    stops = layout.recompute_early_stop
    return tuple(one for part in parts for one in (until_last_needed(part) if stops else part))
