"""Collectives of tensor parallelism around the products of a layer, with and without sequence parallelism."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.adapters import is_adapted
from kernelcast.runtime.step.modules import RECIPES
from kernelcast.runtime.step.op import Number, Op, Ops, Overlap, flag, op
from kernelcast.runtime.step.sizes import Sizes


class Mixer(NamedTuple):
    """What mixes the tokens of a layer: its ops, its column-parallel products, its row-parallel one, and bytes of
    gradients at the fullest moment of its backward pass.
    """

    ops: Callable[[Sizes], Ops]
    columns: Callable[[Sizes], tuple[str, ...]]
    output: str
    gradient_bytes: Callable[[Sizes], Number]


class Products(NamedTuple):
    """Column-parallel products of one input, or the last row-parallel one of a sum; the number of their collectives."""

    names: tuple[str, ...]
    collectives: int


def enter_region(
    s: Sizes, name: str, forward: Products, backward: Products, *, in_pieces: bool = True, **others: Any
) -> Ops:
    """Collectives of column-parallel products: their input is gathered, and its gradient summed.

    With sequence parallelism the input is gathered; without it every device has all of it. Where a device keeps a shard
    of it, this is gathered again for the weight gradients, overlapped with the input gradient (arXiv 2205.05198,
    section 4.2.2), but for frozen weights. The input's gradient is summed under the weight gradients where the
    framework overlaps it (Megatron-LM's tensor_parallel/layers.py). `forward` are the products that share a gather,
    `backward` those that share a sum.
    """
    overlap, width = s.layout.tensor_overlap, _gathered_width(s, name, forward.names)
    pieces = Overlap(forward.names, in_pieces=True) if in_pieces and overlap == "products" else None
    again = others | {"overlaps": Overlap(forward.names, Direction.INPUT_GRADIENT)}
    under = None if overlap == "none" else Overlap(backward.names, Direction.WEIGHT_GRADIENT)
    gathers = int(forward.collectives > 0 and not (s.modules.keeps_gathered or s.is_frozen))
    sums = ("backward", backward.collectives)
    return (
        gather(s, f"gather_{name}", "forward", width, forward.collectives, overlaps=pieces, **others),
        gather(s, f"gather_{name}_again", "backward", width, gathers, **again),
        all_reduce(s, f"sum_{name}_gradient", *sums, overlaps=under, **others),
        scatter(s, f"scatter_{name}_gradient", *sums, overlaps=under, **others),
    )


def leave_region(
    s: Sizes, name: str, forward: Products, backward: Products, *, in_pieces: bool = True, **others: Any
) -> Ops:
    """Collectives of row-parallel products: output summed or scattered, its gradient then gathered."""
    of_output, width = f"gather_{name}_gradient", _gathered_width(s, name)
    if s.gathers_float8(name) and RECIPES[s.layout.fp8_recipe].scales_blocks and not s.is_frozen:
        width *= 2  # along rows for the input's gradient, along columns for the weight's
    is_cut = in_pieces and s.layout.tensor_overlap == "products"
    pieces = Overlap(forward.names, in_pieces=True) if is_cut else None
    of_gradient = Overlap(backward.names, Direction.INPUT_GRADIENT, in_pieces=True) if is_cut else None
    return (
        all_reduce(s, f"sum_{name}", "forward", forward.collectives, **others),
        scatter(s, f"scatter_{name}", "forward", forward.collectives, overlaps=pieces, **others),
        gather(s, of_output, "backward", width, min(1, backward.collectives), overlaps=of_gradient, **others),
        gather(s, f"{of_output}_more", "backward", width, max(0, backward.collectives - 1), **others),
    )


def _gathered_width(s: Sizes, name: str, readers: tuple[str, ...] = ()) -> int:
    """Entries of the training's type per token that move as much as what a region gathers.

    A copy that is cast; in the training's type where adapters next to `readers` read it too.
    """
    if not s.gathers_float8(name) or any(is_adapted(s.model, s.layout, name, role) for role in readers):
        return s.hidden
    return round(s.hidden * RECIPES[s.layout.fp8_recipe].entry_bytes / s.element_bytes)


def all_reduce(s: Sizes, name: str, of_pass: str, count: Number, *, width: int = 0, **others: Any) -> Op:
    """Sums of activations across the tensor-parallel group; of `width` entries per token also with a cut sequence."""
    count = count * flag(s.tp > 1) * (1 if width else 1 - s.sequence_parallel)
    return _collective(s, name, "all_reduce", of_pass, s.tokens * (width or s.hidden), count, **others)


def scatter(s: Sizes, name: str, of_pass: str, count: Number, **others: Any) -> Op:
    """Sums whose result is cut along the sequence."""
    count = count * s.sequence_parallel
    return _collective(s, name, "reduce_scatter", of_pass, s.tokens * s.hidden, count, **others)


def gather(s: Sizes, name: str, of_pass: str, width: int, count: Number, **others: Any) -> Op:
    """Gathers of activations that are cut along the sequence, `width` entries per token."""
    count = count * s.sequence_parallel
    return _collective(s, name, "all_gather", of_pass, -(-s.tokens * width // s.tp), count, **others)


def gather_columns(s: Sizes, name: str, width: Number) -> Op:
    """The columns of a product's output put together, `width` of them on a device."""
    return _collective(s, name, "all_gather", "forward", s.tokens * width, flag(s.tp > 1))


def _collective(
    s: Sizes, name: str, operator: str, of_pass: str, entries: Number, count: Number, **others: Any
) -> Op:
    shape = (entries, s.group.nodes, s.group.gpus_per_node)
    return op(name, operator, *shape, role="tensor", count=count, collective=of_pass, **others)
