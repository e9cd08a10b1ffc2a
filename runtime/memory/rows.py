"""The stages whose memory is asked for, as arrays: one row is one stage of one layout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES, EXPERT_LOAD, LAYOUT, REPLICATING

Floats: TypeAlias = NDArray[np.float64]

NONE, SELECTIVE, FULL = 0, 1, 2
"""Codes of `Rows.recompute`: positions in `Recompute`."""


_ENDS = ("first", "last", "chunk_layers", "live_first", "live_last", "late", "copies")
"""The numbers of a load before those by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sizes of every row, each float64 [rows]; floats, so that no product of sizes overflows.

    - `layout`: the fields `OF_LAYOUT` of the row's layout, `recompute` as a code;
    - the ends `first`, `last` are 0 or 1;
    - `layers` of the stage by their kind, and `chunk_layers` of its first chunk;
    - in flight at the peak: `live_layers` (layers times micro-batches that wait for their backward pass) by kind,
      and micro-batches in the model's first (`live_first`) and last chunk (`live_last`), where the row has it;
    - `late` micro-batches wait for their weight gradients (zero-bubble only);
    - `copies` of the model in the pipeline;
    - ZeRO shards over `shard_group` replicas, 0 for all of them, in every row;
    - `common`: the fields `COMMON` of all rows' layouts, those not given have their defaults.
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
    layout: Mapping[str, Floats]
    shard_group: int = 0
    common: Mapping[str, Any] = field(default_factory=dict)

    def of_all(self, name: str) -> Any:
        """A field that all rows have in common."""
        return of_all(self.common, name)

    @classmethod
    def of_loads(cls, numbers: Floats, **others: Any) -> "Rows":
        """Of `Load.numbers`, float64 [rows, numbers], and the other fields."""
        ends, by_kind = numbers.T[: len(_ENDS)], tuple(numbers.T[len(_ENDS) :])
        kinds = len(by_kind) // 2
        own: dict[str, Any] = dict(zip(_ENDS, ends, strict=True))
        return cls(**own, layers=by_kind[:kinds], live_layers=by_kind[kinds:], **others)

    @property
    def together(self) -> Floats:
        """Layers of a chunk that full recomputation runs again at once."""
        most = 1 if self.of_all("recompute_layers") else self.of_all("recompute_together")
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
        return self.layout["zero"]

    @property
    def recompute(self) -> Floats:
        """Code of what is recomputed."""
        return self.layout["recompute"]

    @property
    def replicas(self) -> Floats:
        """Devices that hold the same parameters."""
        found: Floats = self.copies * np.prod([self.layout[name] for name in REPLICATING], axis=0)
        return found

    @property
    def shards(self) -> Floats:
        """Replicas that ZeRO shards over (`Parallelism.shards`)."""
        return np.where(self.replicas > 1, self.shard_group or self.replicas, 1.0)

    @property
    def expert_shards(self) -> Floats:
        """Devices that ZeRO shards experts over (`Parallelism.expert_replicas`)."""
        found: Floats = self.layout["tp"] * self.replicas / (self.layout["ep"] * self.layout["expert_tp"])
        return found


def of_all(common: Mapping[str, Any], name: str) -> Any:
    """A field that all layouts have in common, by default its own."""
    return common.get(name, LAYOUT[name].default)


COMMON = (
    "recompute_modules",
    "recompute_layers",
    "recompute_together",
    "dropout",
    "vocabulary_multiple",
    "optimizer",
    "optimizer_states",
    "offload_optimizer",
    "offload_activations",
    *EXPERT_LOAD,
    "fp8_recipe",
    "fp8_linears",
    "lora_rank",
    "lora_linears",
)
"""The fields of a layout in `Rows.common`."""

OF_LAYOUT = (*DEGREES, *EXPERT_DEGREES, "zero", "recompute")
"""The fields of a layout that a stage's memory depends on beside what its parts hold."""
