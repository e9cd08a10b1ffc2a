"""How many rows the experts of the fullest device have: as the mean, by a factor, or by tokens per expert."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.byte_cache import remembered
from kernelcast.runtime.request.layout import Parallelism


class Fullest(NamedTuple):
    """Rows of the fullest device as a multiple of the mean: in time, where every layer waits for its own; in memory,
    for the fullest in the mean over layers.
    """

    in_time: float
    in_memory: float


def fullest(layout: Parallelism, experts: int, ep: int) -> Fullest:
    """The fullest of `ep` devices that share the experts of a layer, neighbouring ones each (Megatron-core)."""
    most = layout.expert_capacity or float("inf")
    if layout.expert_padding:
        return Fullest(most, most)
    if layout.expert_tokens is None:
        return Fullest(min(layout.expert_imbalance, most), min(layout.expert_imbalance, most))
    return _fullest(layout.expert_tokens, most, experts, ep)


def fullest_in_memory(layout: Parallelism, experts: int) -> NDArray[np.float64]:
    """`Fullest.in_memory` by the expert-parallel degrees of many layouts, float64 [rows]."""
    degrees, whose = np.unique(layout.ep, return_inverse=True)
    return np.array([fullest(layout, experts, int(degree)).in_memory for degree in degrees])[whose]


@remembered(4 << 20)
def _fullest(tokens: tuple[int, ...], most: float, experts: int, ep: int) -> Fullest:
    of_layers = np.array(tokens, dtype=np.float64).reshape(-1, experts)
    rows = np.minimum(of_layers / of_layers.mean(axis=1, keepdims=True), most)
    by_device = rows.reshape(len(rows), ep, -1).mean(axis=2)
    return Fullest(float(by_device.max(axis=1).mean()), float(by_device.mean(axis=0).max()))
