"""What activation checkpointing runs again in a backward pass of a layer."""

from collections.abc import Iterable, Iterator
from math import prod

from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.op import Number, Op, Ops, until_last_needed
from kernelcast.runtime.step.sizes import Sizes

_PARTS = {"moe": ("moe_act", "shared_experts")}
"""Modules inside others."""
FUSED_ATTENTION, PER_OP = "attention", "per_op"
"""Not a module: every layer by torchtitan's list of saved operators."""


def with_parts(modules: Iterable[str]) -> frozenset[str]:
    """Modules, and those inside them."""
    return frozenset(part for name in modules for part in (name, *_PARTS.get(name, ())))


def _listed(ops: Iterable[Op]) -> Iterator[tuple[Op, tuple[Number, ...], tuple[Number, ...]]]:
    """Ops with the columns of their products that torchtitan's selective checkpointing per operator saves, and those
    that it runs again: of its models' products every second one is saved (torchtitan's `_save_list`). A compiled
    product in 8 bit is listed as the product that it stands for.
    """
    place = 0
    for one in ops:
        weight = one.weight
        columns: tuple[Number, ...] = ()
        if weight is not None and one.call is not None:
            columns = weight.columns or (weight.n,)
        yield one, columns[place % 2 :: 2], columns[1 - place % 2 :: 2]
        place += len(columns)


def saved_by_operator(s: Sizes, ops: Iterable[Op]) -> Iterator[Number]:
    """Bytes that each op leaves by torchtitan's list: every second product, attention, scattered sums."""
    for one, saved, _ in _listed(ops):
        kept: Number = 0
        if saved and one.call is not None:
            kept = s.element_bytes * sum(saved) * prod(one.call.shape[:-2])
        elif one.name == FUSED_ATTENTION:
            shared = 0 if s.attention_keeps_output else s.element_bytes * s.tokens * s.attention_width
            kept = one.saves + shared
        elif one.call is not None and one.call.operator == "reduce_scatter" and one.collective == "forward":
            kept = one.call.count * s.activation_bytes
        yield kept


def _unsaved(ops: Iterable[Op]) -> Iterator[Op]:
    """What is run again then: all but attention, sums that are scattered and the products saved."""
    for one, saved, again in _listed(ops):
        call = one.call
        if one.module == "core_attn" or call is None or call.operator == "reduce_scatter":
            continue
        if saved:
            if not again:
                continue
            one = one._replace(call=call._replace(shape=(*call.shape[:-1], int(sum(again)))))
        yield one


def recomputed(layout: Parallelism, ops: Ops) -> tuple[Op, ...]:
    """The ops of a layer that its backward pass runs again: "full" all, "selective" `recompute_modules`, or by
    operator; with `recompute_early_stop` up to the last tensor that is needed.
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
