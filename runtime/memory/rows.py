"""The stages whose memory is asked for, as arrays: one row is one stage of one layout."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.request.fields import REPLICATING
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.layouts import RECOMPUTE, Layouts

Floats: TypeAlias = NDArray[np.float64]

NONE, SELECTIVE, FULL = map(RECOMPUTE.index, ("none", "selective", "full"))
"""Codes of `Rows.recompute`."""
_ENDS = ("first", "last", "chunk_layers", "live_first", "live_last", "late", "copies")
"""The numbers of a load before those by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sizes of every row, each float64 [rows]; floats, so that no product of sizes overflows.

    - `layout` of the row, its chosen fields arrays, with its way of activation checkpointing as a code, `recompute`;
    - the ends `first`, `last` are 0 or 1;
    - `layers` of the stage by their kind, and `chunk_layers` of its first chunk;
    - in flight at the peak: `live_layers` (layers times micro-batches that wait for their backward pass) by kind,
      and micro-batches in the model's first (`live_first`) and last chunk (`live_last`), where the row has it;
    - `late` micro-batches wait for their weight gradients (zero-bubble only);
    - `copies` of the model in the pipeline.
    """

    first: Floats
    last: Floats
    chunk_layers: Floats
    live_first: Floats
    live_last: Floats
    late: Floats
    copies: Floats
    layers: tuple[Floats, ...]
    live_layers: tuple[Floats, ...]
    layout: Parallelism
    recompute: Floats

    @classmethod
    def of_loads(cls, numbers: Floats, layouts: Layouts) -> "Rows":
        """Of `Load.numbers`, float64 [rows, numbers], and the layout of each row."""
        ends, by_kind = numbers.T[: len(_ENDS)], tuple(numbers.T[len(_ENDS) :])
        kinds = len(by_kind) // 2
        own: dict[str, Any] = dict(zip(_ENDS, ends, strict=True))
        return cls(
            **own,
            layers=by_kind[:kinds],
            live_layers=by_kind[kinds:],
            layout=layouts.as_one,
            recompute=layouts["recompute"].astype(np.float64),
        )

    @property
    def together(self) -> Floats:
        """Layers of a chunk that full recomputation runs again at once."""
        most = 1 if self.layout.recompute_layers else self.layout.recompute_together
        found: Floats = np.minimum(most, np.maximum(1.0, self.chunk_layers))
        return found

    @property
    def has_layers(self) -> NDArray[np.bool_]:
        """Where there is any layer."""
        found: NDArray[np.bool_] = np.sum(self.layers, axis=0) > 0
        return found

    @property
    def zero(self) -> Floats:
        """ZeRO stage, 0 to 3."""
        return np.asarray(self.layout.zero, dtype=np.float64)

    @property
    def replicas(self) -> Floats:
        """Devices that hold the same parameters."""
        found: Floats = self.copies * np.prod([getattr(self.layout, name) for name in REPLICATING], axis=0)
        return found

    @property
    def shards(self) -> Floats:
        """Replicas that ZeRO shards over (`Parallelism.shards`)."""
        return np.where(self.replicas > 1, self.layout.shard_group or self.replicas, 1.0)

    @property
    def expert_shards(self) -> Floats:
        """Devices that ZeRO shards experts over, in as many groups as the others (`Parallelism.expert_replicas`)."""
        devices = self.layout.tp * self.replicas / (self.layout.ep * self.layout.expert_tp)
        return np.maximum(1.0, np.floor(devices * self.shards / self.replicas))
