"""The stages whose memory is asked for, as arrays: one row is one stage of one layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.request.fields import DEGREES, REPLICATING
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.layers.sizes import Sizes

Floats: TypeAlias = NDArray[np.float64]

NONE, SELECTIVE, FULL = 0, 1, 2
"""Codes of `Rows.recompute`: positions in `Recompute`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sizes of every row, each float64 [rows]; floats, so that no product of sizes overflows.

    - `layout`: the fields `OF_LAYOUT` of the row's layout, `sequence_parallel` as 0 or 1, `recompute` as a code;
    - the ends `first`, `last` are 0 or 1;
    - `layers` of the stage, and `chunk_layers` of its first chunk;
    - in flight at the peak: `live_layers` (layers times micro-batches that wait for their backward pass),
      and micro-batches in the model's first (`live_first`) and last chunk (`live_last`), where the row has it;
    - `late` micro-batches wait for their weight gradients (zero-bubble only);
    - ZeRO shards over `shard_group` replicas, 0 for all of them, in every row.
    """

    layout: Mapping[str, Floats]
    first: Floats
    last: Floats
    layers: Floats
    chunk_layers: Floats
    live_layers: Floats
    live_first: Floats
    live_last: Floats
    late: Floats
    shard_group: int = 0

    @property
    def zero(self) -> Floats:
        """ZeRO stage, 0 to 3."""
        return self.layout["zero"]

    @property
    def recompute(self) -> Floats:
        """Code of what is recomputed."""
        return self.layout["recompute"]

    @property
    def replicas(self) -> Floats:
        """Devices that hold the same parameters."""
        found: Floats = np.prod([self.layout[name] for name in REPLICATING], axis=0)
        return found

    @property
    def shards(self) -> Floats:
        """Replicas that ZeRO shards over (`Parallelism.shards`)."""
        return np.where(self.replicas > 1, self.shard_group or self.replicas, 1.0)

    def sizes(self, model: ModelConfig) -> Sizes:
        """What the devices of every row hold of a model's sizes."""
        return Sizes.of_columns(model, self.layout)


OF_LAYOUT = (*DEGREES, "micro_batch", "zero", "sequence_parallel", "recompute")
"""The fields of a layout that memory depends on."""

LOADED = ("first", "last", "layers", "chunk_layers", "live_layers", "live_first", "live_last", "late")
"""The fields of `Rows` that the schedule decides, see `Load`."""
