"""What a search is asked, as one value that can be sent to other machines."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.layouts import Layouts
from kernelcast.runtime.request.fields import RankBy as RankBy
from kernelcast.runtime.request.layout import DEFAULT_BUCKET_ENTRIES, Cluster
from kernelcast.runtime.request.model import MAX_SIZE, require_choice, require_integer
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.step.timeline_kinds import TimelineKind

MAX_TOP = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which layouts of `space` are best, and by what.

    - `timeline`: the event simulation, or the paper's closed form.
    - `rank_by`: the time of a step, or tokens per second and device; the two differ where `space.gpus` has
      several sizes.
    - `gpu_memory_bytes`: layouts that need more on a device are left out; None leaves none out.
    - `top`: how many of the best are kept.
    - `prune`: whether the simulation of layouts may be left out that can be neither among the best nor on the
      Pareto front. The answer does not depend on it.

    Raises:
        UsageError: a field has a wrong type or value.
    """

    space: Space
    timeline: TimelineKind = "simulate"
    rank_by: RankBy = "step-time"
    gpu_memory_bytes: int | None = None
    top: int = 10
    bucket_entries: int = DEFAULT_BUCKET_ENTRIES
    prune: bool = True

    def __post_init__(self) -> None:
        require_choice("timeline", self.timeline, get_args(TimelineKind))
        require_choice("rank_by", self.rank_by, get_args(RankBy))
        require_integer("top", self.top, low=1, high=MAX_TOP)
        require_integer("bucket_entries", self.bucket_entries, low=1, high=MAX_SIZE)
        memory = self.gpu_memory_bytes
        if memory is not None and (type(memory) is not int or memory < 1):
            raise UsageError(f"gpu_memory_bytes is {memory!r:.80}, expected a whole number, 1 or more")

    @property
    def cluster(self) -> Cluster:
        """The nodes that the layouts are on."""
        return Cluster(gpus_per_node=self.space.gpus_per_node)

    def score(self, layouts: Layouts, step_us: NDArray[np.float64]) -> NDArray[np.float64]:
        """What layouts are ranked by, the smaller the better: time, or device time (its inverse is tokens per GPU)."""
        if self.rank_by == "step-time":
            return step_us
        return step_us * (layouts["pp"] * layouts["tp"] * layouts["dp"])
