"""How many rows the experts of the fullest device have: as the mean, by a factor, or by tokens per expert."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.remembering import remembered
from kernelcast.runtime.request.fields import LAYOUT


class Fullest(NamedTuple):
    """Rows of the device with the most, as a multiple of the mean without dropped ones: in time, and in memory.

    A layer waits for its own fullest device, so time goes by the mean over the layers of each one's fullest. What all
    layers keep is on the same devices, so memory goes by the device that is the fullest in the mean over the layers.
    """

    in_time: float
    in_memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """The fields of a layout that say which rows experts get, see `Parallelism`."""

    imbalance: float = LAYOUT["expert_imbalance"].default
    tokens: tuple[int, ...] | None = LAYOUT["expert_tokens"].default
    capacity: float = LAYOUT["expert_capacity"].default
    is_padded: bool = LAYOUT["expert_padding"].default

    @classmethod
    def of(cls, field: Callable[[str], Any]) -> "ExpertLoad":
        """By the value that `field` has for a name."""
        return cls(
            imbalance=field("expert_imbalance"),
            tokens=field("expert_tokens"),
            capacity=field("expert_capacity"),
            is_padded=field("expert_padding"),
        )

    def fullest(self, experts: int, ep: int) -> Fullest:
        """Of `ep` devices that share the experts of a layer, neighbouring ones each (Megatron-core)."""
        most = self.capacity or float("inf")
        if self.is_padded:
            return Fullest(most, most)
        if self.tokens is None:
            return Fullest(min(self.imbalance, most), min(self.imbalance, most))
        return _fullest(self.tokens, most, experts, ep)

    def in_memory(self, experts: int, ep: NDArray[Any]) -> NDArray[np.float64]:
        """The same for many layouts, float64 [rows]."""
        degrees, whose = np.unique(ep, return_inverse=True)
        return np.array([self.fullest(experts, int(degree)).in_memory for degree in degrees])[whose]


@remembered(4 << 20)
def _fullest(tokens: tuple[int, ...], most: float, experts: int, ep: int) -> Fullest:
    of_layers = np.array(tokens, dtype=np.float64).reshape(-1, experts)
    rows = np.minimum(of_layers / of_layers.mean(axis=1, keepdims=True), most)
    by_device = rows.reshape(len(rows), ep, -1).mean(axis=2)
    return Fullest(float(by_device.max(axis=1).mean()), float(by_device.mean(axis=0).max()))
