"""The fewest devices that train on a number of tokens in a number of days."""

from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, fields
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.training import step_time_for
from kernelcast.runtime.intent.best import OpenRequest, require_answer
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.sweep import sweep
from kernelcast.runtime.step.layouts import Layouts

MOST_DEVICES = 65_536
MOST_EFFICIENT = 1.1
"""Sizes that need more than this times the highest rate per device of any evaluated power of two are left out."""
_AT_ONCE = 8
_MOST_CANDIDATES = 128
_MOST_ROUNDS = 4
# Without a known peak, a device is assumed to be at most this much faster in a larger job.
_MOST_GAIN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InTime(Question):
    """Which layout with a step of at most `step_time_s` needs the fewest devices, then the shortest step."""

    step_time_s: float

    def score(self, layouts: Layouts, step_us: NDArray[np.float64]) -> NDArray[np.float64]:
        """Devices, and a part below one for the time; layouts that take too long come after all others, by time."""
        share = step_us / (1e6 * self.step_time_s)
        return np.where(share <= 1, layouts.devices + share / 2, 1e9 * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """What a step may take, and the layouts on the fewest `evaluated` devices that take no longer, by the median of a
    step and by its 95th percentile (None where no size makes it).
    """

    step_time_s: float
    by_median: Estimate
    by_95th_percentile: Estimate | None
    evaluated: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            **values_of(self, "step_time_s", gpus_by_median="by_median.parallelism.world_size"),
            **values_of(self, gpus_by_95th_percentile="by_95th_percentile.parallelism.world_size"),
            "evaluated": list(self.evaluated),
        }


def find_fewest(request: OpenRequest, *, tokens: int, days: float) -> Fewest:
    """Search sizes of a job: powers of two, in whole nodes from one node on, up to `MOST_DEVICES`, then between the
    last that takes too long and the first that does not, in whole nodes (in single devices below one).

    Time need not fall with devices, so every size is evaluated from small to large; sizes that cannot make it are left
    out: sizes that would need more than the device's peak or `MOST_EFFICIENT`. If more than 128 sizes are left between
    two powers of two, a multiple of a node is taken instead of the node. DataError where no size makes it, or none has
    a layout that fits.
    """
    space = request.question.space
    per_step = space.global_batch * space.sample_length
    allowed_s = step_time_for(tokens=tokens, days=days, tokens_per_step=per_step)
    finder = _Finder(request)
    median = finder.fewest(allowed_s, least=1)
    if median is None:
        raise finder.too_long(allowed_s, days)
    late: Estimate | None = median
    for _ in range(_MOST_ROUNDS):
        if late is None or late.interval_s is None or late.interval_s[1] <= allowed_s:
            break
        # What a step may take that is as uncertain as this one.
        target_s = allowed_s * late.step_time_s / late.interval_s[1]
        late = finder.fewest(target_s, least=late.parallelism.world_size)
    if late is not None and late.interval_s is not None and late.interval_s[1] > allowed_s:
        late = None
    return Fewest(
        step_time_s=allowed_s,
        by_median=median,
        by_95th_percentile=late,
        evaluated=tuple(sorted(finder.evaluated)),
    )


class _Finder:
    def __init__(self, request: OpenRequest) -> None:
        self.request = request
        self.evaluated: set[int] = set()
        self.fastest: Estimate | None = None
        self.found = Found()

    def fewest(self, step_time_s: float, *, least: int) -> Estimate | None:
        """The layout on the fewest devices, at least `least`, whose step takes no longer; None without one."""
        node = self.request.question.space.gpus_per_node
        before, best_rate = 0, 0.0
        for size in _powers(node):
            if size < least or size < self._least_devices(step_time_s):
                before = size
                continue
            found = self._search((size,), step_time_s)
            if found is None:
                before = size
                continue
            best_rate = max(best_rate, 1 / (size * found.step_time_s))
            if found.step_time_s <= step_time_s:
                return self._between(max(before, least - 1), found, step_time_s, best_rate)
            before = size
        return None

    def _between(self, before: int, found: Estimate, step_time_s: float, best_rate: float) -> Estimate:
        """The fewest devices after `before`, up to the number of `found`."""
        node, size = self.request.question.space.gpus_per_node, found.parallelism.world_size
        least = max(
            before + 1, self._least_devices(step_time_s), 1 / (MOST_EFFICIENT * step_time_s * best_rate)
        )
        stride = node if before >= node else 1
        while (size - least) / stride > _MOST_CANDIDATES:
            stride *= 2
        candidates = [one for one in range(stride, size, stride) if one >= least]
        for first in range(0, len(candidates), _AT_ONCE):
            better = self._search(tuple(candidates[first : first + _AT_ONCE]), step_time_s)
            if better is not None and better.step_time_s <= step_time_s:
                return better
        return found

    def _search(self, sizes: Sequence[int], step_time_s: float) -> Estimate | None:
        request = self.request.with_space(gpus=tuple(sizes))
        values = {one.name: getattr(request.question, one.name) for one in fields(Question)}
        question = InTime(**{**values, "top": 1}, step_time_s=step_time_s)
        found = sweep(request.estimator.predictor, question)
        self.evaluated.update(sizes)
        self.found = Found.merged((self.found, found), 1)
        if not len(found.best):
            return None
        estimate = request.estimate(found.best.layouts.parallelism(0))
        if self.fastest is None or estimate.step_time_s < self.fastest.step_time_s:
            self.fastest = estimate
        return estimate

    def _least_devices(self, step_time_s: float) -> float:
        """Below this the devices would have to exceed their peak."""
        known = self.fastest
        if known is None:
            return 0.0
        device_s = known.step_time_s * known.parallelism.world_size
        return device_s * (1 / _MOST_GAIN if known.mfu is None else known.mfu) / step_time_s

    def too_long(self, step_time_s: float, days: float) -> DataError:
        for size in _powers(self.request.question.space.gpus_per_node):
            if size not in self.evaluated:  # for the shortest time that can be named
                self._search((size,), step_time_s)
        if self.fastest is None:
            asked = self.request.with_space(gpus=tuple(sorted(self.evaluated))).question
            require_answer(self.request.estimator, asked, self.found)
        assert self.fastest is not None
        needed = days * self.fastest.step_time_s / step_time_s
        devices = self.fastest.parallelism.world_size
        fastest = f"the fastest of {len(self.evaluated)} evaluated sizes is {devices:,} devices"
        return DataError(field="days", found=days, expected=f"at least {needed:,.4g}: {fastest}")


def _powers(node: int) -> list[int]:
    """Powers of two below a node, then times a node."""
    inside = takewhile(lambda size: size < node, (1 << power for power in count()))
    nodes = takewhile(lambda size: size <= max(MOST_DEVICES, node), (node << power for power in count()))
    return [*inside, *nodes]
