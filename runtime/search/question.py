"""The question of a search, as one value that can be sent to other machines."""

import math

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.device_memory import MemorySpread
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.request.fields import (
    DEFAULT_BUCKET_ENTRIES,
    MEMORY,
    OPTIONS,
    SEARCH,
    RankBy,
    TimelineKind,
)
from kernelcast.runtime.request.layout import Cluster
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.step.layouts import Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which layouts of `space` are best, and by what.

    - `timeline`: the event simulation, or the paper's closed form.
    - `rank_by`: the time of a step, or tokens per second and device; the two differ where `space.gpus` has
      several sizes.
    - `gpu_memory_bytes`: layouts that need more on a device are left out; None leaves none out.
    - `reserved_memory_bytes`: part of it that they cannot have.
    - `has_nccl`: whether NCCL's buffers take another part, by the layout's groups.
    - `fit_probability`: least probability that a layout fits, by the `spread` of measured memory; None: by the
      prediction itself.
    - `fabric`: what answers the collectives instead of the bundle's; None: the bundle's.
    - `top`: how many of the best are kept.
    - `by_kind`: whether only the best of each kind counts among them (`best_of`).
    - `front`: whether the Pareto front of score and memory is looked for too.
    - `prune`: whether the simulation of layouts may be left out that can be neither among the best nor on the
      Pareto front. The answer does not depend on it.

    Raises:
        UsageError: a field has a wrong type or value.
    """

    space: Space
    timeline: TimelineKind = OPTIONS["timeline"].default
    rank_by: RankBy = SEARCH["rank_by"].default
    gpu_memory_bytes: int | None = None
    reserved_memory_bytes: int = 0
    fit_probability: float = SEARCH["fit_probability"].default
    spread: MemorySpread | None = None
    has_nccl: bool = False
    top: int = SEARCH["top"].default
    bucket_entries: int = DEFAULT_BUCKET_ENTRIES
    by_kind: bool = False
    front: bool = True
    prune: bool = True
    fabric: FabricChoice | None = None

    def __post_init__(self) -> None:
        names = ("timeline", "bucket_entries", "rank_by", "top", "fit_probability")
        for field in ((OPTIONS.get(name) or SEARCH[name]) for name in names):
            field.check(getattr(self, field.name))
        for name, field in MEMORY.items():
            if getattr(self, name) is not None:
                field.check(getattr(self, name))

    def usable_bytes(self, layouts: Layouts) -> NDArray[np.float64]:
        """The most that layouts may be predicted to need on a device, float64 [layouts]; infinite without a limit."""
        free = np.full(len(layouts), np.inf if self.free_bytes is None else self.free_bytes)
        if self.has_nccl:
            free = np.maximum(0, free - sum(communicator_bytes(layouts).values()))
        return np.floor(free * self._largest_share)

    @property
    def _largest_share(self) -> float:
        return 1.0 if self.spread is None else self.spread.largest_share(self.fit_probability)

    @property
    def most_bytes(self) -> int | None:
        """At least what any layout may be predicted to need; None where nothing limits it."""
        return None if self.free_bytes is None else math.ceil(self.free_bytes * max(1.0, self._largest_share))

    @property
    def free_bytes(self) -> int | None:
        """Memory of a device without what is reserved; None where nothing limits it."""
        return (
            None
            if self.gpu_memory_bytes is None
            else max(0, self.gpu_memory_bytes - self.reserved_memory_bytes)
        )

    @property
    def cluster(self) -> Cluster:
        """The nodes that the layouts are on."""
        return Cluster(gpus_per_node=self.space.gpus_per_node)

    def score(self, layouts: Layouts, step_us: NDArray[np.float64]) -> NDArray[np.float64]:
        """What layouts are ranked by, the smaller the better: time, or device time (its inverse is tokens per GPU)."""
        if self.rank_by == "step-time":
            return step_us
        return step_us * layouts.devices
