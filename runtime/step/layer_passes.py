"""Passes of one layer for one micro-batch: its calls in either direction, and what recomputation adds."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kernelcast.runtime.step.calls import Beside, Calls, Component, backward, forward
from kernelcast.runtime.step.layers.sizes import Layer, Sizes, calls_of
from kernelcast.runtime.step.recomputation import Recomputation

REMEMBERED = 1 << 9
"""Layers of sizes that are remembered, of some ten thousand bytes each."""


class Passes(NamedTuple):
    """Forward and backward calls of one layer, and its collectives beside products in either pass."""

    forward: Calls
    backward: Calls
    beside_forward: tuple[Beside, ...]
    beside_backward: tuple[Beside, ...]


@lru_cache(maxsize=REMEMBERED)
def _kept_passes(kind: type[Layer], sizes: Sizes) -> Passes:
    """Passes of one layer of which nothing is computed again."""
    layer, calls = kind(sizes), calls_of(kind(sizes))
    return Passes(
        forward((*calls, *layer.forward_collectives)),
        (*backward(calls), *forward(layer.backward_collectives)),
        layer.beside_forward,
        layer.beside_backward,
    )


@lru_cache(maxsize=REMEMBERED)
def passes_of(kind: type[Layer], sizes: Sizes, how: Recomputation) -> Passes:
    """Passes of one layer; what recomputation runs again of a transformer layer stands last."""
    layer, kept = kind(sizes), _kept_passes(kind, sizes)
    # As many for every layout of a search: without recomputation they are empty.
    nothing = Beside()
    again: Sequence[Beside] = [
        nothing._replace(in_pieces=one.in_pieces, of_weights=one.of_weights, of_another=one.of_another)
        for one in kept.beside_forward
    ]
    if how.kind == "full":
        again = [one._replace(component=Component.BESIDE_BACKWARD) for one in layer.beside_again(how)]
    return kept._replace(
        backward=(*kept.backward, *layer.recomputed(how)), beside_backward=(*kept.beside_backward, *again)
    )
