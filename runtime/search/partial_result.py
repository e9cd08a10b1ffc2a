"""Results so far of a search, or of one part of it: counts, the best layouts and the Pareto front."""

from collections.abc import Iterable
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, field, fields
from kernelcast.runtime.operators import Key
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import Ranked, best_of, front_of, is_dominated, kinds_of
from kernelcast.runtime.search.refusals import Refusals
from kernelcast.runtime.step.layouts import COLUMNS, Layouts


@dataclass(slots=True, kw_only=True)
class Counts:
    """How many layouts there were: `layouts` = `out_of_memory` + `unanswered` + `evaluated`.

    `evaluated` have a time: by closed form, or `simulated`, or `pruned` where a lower bound of the simulation
    was enough to see that they are neither among the best nor on the front. `unanswered` need a regressor that
    the bundle lacks, or that answers nonsense.
    """

    layouts: int = 0
    out_of_memory: int = 0
    unanswered: int = 0
    evaluated: int = 0
    simulated: int = 0
    pruned: int = 0

    def add(self, other: "Counts") -> None:
        """Add another part's counts."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True, kw_only=True)
class Found:
    """The state of a search; its size depends on `top` and on the front, not on how many layouts went by.

    `smallest` is the layout that needs least memory, whether it fits or not.
    """

    counts: Counts = field(default_factory=Counts)
    refusals: Refusals = field(default_factory=Refusals)
    problems: dict[Key, str] = field(default_factory=dict)
    best: Ranked = field(default_factory=lambda: nothing())
    front: Ranked = field(default_factory=lambda: nothing())
    smallest: Ranked = field(default_factory=lambda: nothing())

    def add(self, ranked: Ranked, top: int, *, front: bool = True, by_kind: bool = False) -> None:
        """Take evaluated layouts in."""
        best = partial(best_of, count=top, by_kind=by_kind)
        self.best = best(self.best.with_others(best(ranked)))
        if front:
            self.front = front_of(self.front.with_others(front_of(ranked)))

    def look_at_memory(self, layouts: Layouts, memory_bytes: NDArray[np.float64]) -> None:
        """Remember the layout that needs least."""
        order = np.lexsort((layouts["index"], memory_bytes))[:1]
        least = layouts.take(order)
        unknown = np.zeros(len(order))
        candidate = Ranked(least, memory_bytes[order], unknown, memory_bytes[order])
        self.smallest = best_of(self.smallest.with_others(candidate), 1)

    def may_matter(self, question: Question, bounded: Ranked) -> NDArray[np.bool_]:
        """Which layouts whose score is only bounded can still be among the best or on the front."""
        full = len(self.best) >= question.top
        bar = np.full(len(bounded), self.best.score[question.top - 1] if full else np.inf)
        if question.by_kind:
            # Each has to be better than the best of its own kind.
            kinds = kinds_of(bounded.layouts)
            for kind, best in zip(kinds_of(self.best.layouts), self.best.score, strict=True):
                bar[(kinds == kind).all(axis=1)] = best
        may_lead: NDArray[np.bool_] = bounded.score <= bar
        if not question.front:
            return may_lead
        return may_lead | ~is_dominated(self.front, bounded.score, bounded.memory_bytes)

    @classmethod
    def merged(cls, parts: Iterable["Found"], top: int) -> Self:
        """What one search over all the parts would have found."""
        total = cls()
        for part in parts:
            total.counts.add(part.counts)
            total.refusals.merge(part.refusals)
            total.problems = part.problems | total.problems
            total.best = best_of(total.best.with_others(part.best), top)
            total.front = front_of(total.front.with_others(part.front))
            total.smallest = best_of(total.smallest.with_others(part.smallest), 1)
        return total


def nothing() -> Ranked:
    """No layouts."""
    table = np.empty((0, len(COLUMNS)), dtype=np.int64)
    return Ranked(Layouts(table, Parallelism.unchecked()), *(np.empty(0) for _ in range(3)))
