"""The best few of millions of layouts that stream by, and the Pareto front."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.step.layouts import Layouts

Floats = NDArray[np.float64]
_DEGREES = (*DEGREES, *EXPERT_DEGREES)


class Ranked:
    """Layouts with their time per update (µs), memory per device (bytes), and the score they are ranked by.

    A smaller score is better; ties go to less memory, then to the earlier index.
    """

    def __init__(self, layouts: Layouts, score: Floats, step_us: Floats, memory_bytes: Floats) -> None:
        self.layouts, self.score = layouts, score
        self.step_us, self.memory_bytes = step_us, memory_bytes

    def __len__(self) -> int:
        return len(self.layouts)

    def take(self, rows: NDArray[Any] | slice) -> "Ranked":
        """The layouts at `rows` (positions, a mask or a slice)."""
        return Ranked(self.layouts.take(rows), self.score[rows], self.step_us[rows], self.memory_bytes[rows])

    def with_others(self, others: "Ranked") -> "Ranked":
        """Both, one after the other."""
        return Ranked(
            Layouts(
                np.concatenate([self.layouts.table, others.layouts.table]),
                (self if len(self) else others).layouts.like,
                max(self.layouts.layers, others.layouts.layers),
            ),
            np.concatenate([self.score, others.score]),
            np.concatenate([self.step_us, others.step_us]),
            np.concatenate([self.memory_bytes, others.memory_bytes]),
        )


def kinds_of(layouts: Layouts) -> NDArray[np.int64]:
    """What layouts of one kind agree in, int64 [layouts, values]: the degrees, and whether parameters are sharded."""
    return np.stack([*(layouts[name] for name in _DEGREES), layouts["zero"] == 3], axis=1)


def best_of(ranked: Ranked, count: int, *, by_kind: bool = False) -> Ranked:
    """The best `count`, best first; `by_kind`: one of each kind (`kinds_of`)."""
    if by_kind:
        order = np.lexsort((ranked.layouts["index"], ranked.memory_bytes, ranked.score))
        _, first = np.unique(kinds_of(ranked.layouts)[order], axis=0, return_index=True)
        return ranked.take(order[np.sort(first)[:count]])
    if len(ranked) > 4 * count:
        # Cheaper than sorting all of them; ties at the edge all stay for the sort below.
        edge = np.partition(ranked.score, count - 1)[count - 1]
        ranked = ranked.take(ranked.score <= edge)
    order = np.lexsort((ranked.layouts["index"], ranked.memory_bytes, ranked.score))
    return ranked.take(order[:count])


def front_of(ranked: Ranked) -> Ranked:
    """The Pareto front of score against memory, best score first.

    A layout is on it when no other is at least as good in both and better in one; of equal ones the
    earliest index represents all.
    """
    order = np.lexsort((ranked.layouts["index"], ranked.memory_bytes, ranked.score))
    memory = ranked.memory_bytes[order]
    if not len(memory):
        return ranked
    # Best score first, a layout is on the front if it needs less memory than all before it.
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(memory)[:-1]])
    return ranked.take(order[memory < least_before])


def is_dominated(front: Ranked, score: Floats, memory_bytes: Floats) -> NDArray[np.bool_]:
    """Whether some layout of `front` is strictly better in score and no worse in memory, bool [n].

    `front` is as `front_of` gives it: scores rise, memory falls.
    """
    if not len(front):
        return np.zeros(len(score), dtype=bool)
    # The front's best-scored layout that fits into the same memory; no other fitting layout scores less.
    falling = front.memory_bytes[::-1]
    fits = len(front) - np.searchsorted(falling, memory_bytes, side="right")
    found = fits < len(front)
    return found & (front.score[np.minimum(fits, len(front) - 1)] < score)
