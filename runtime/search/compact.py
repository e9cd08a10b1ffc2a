"""The result of a search as a table of numbers: ten thousand layouts in a document that a browser shows."""

import time
from typing import Any

import numpy as np

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.request.fields import SEARCHED
from kernelcast.runtime.search.partial_result import nothing
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import best_of
from kernelcast.runtime.search.search import answer
from kernelcast.runtime.search.sweep import Report, sweep
from kernelcast.runtime.step.layouts import Layouts

LAYOUTS_FORMAT = "kernelcast.layouts/1"
COLUMNS = (*SEARCHED, "layer_split")
_OF_BEST_ALONE = ("format", "top", "front")


def compact_search(
    estimator: Estimator, question: Question, *, report: Report | None = None
) -> dict[str, Any]:
    """Plain values, form `kernelcast.layouts/1` (docs/json.md): the best `question.top` layouts and the Pareto front.

    Times equal `predict`. To save time, only the best layout has interval and warnings. `report` as for `search`.

    Raises:
        DataError: a regressor answers nonsense.
    """
    begin = time.perf_counter()
    found = sweep(estimator.predictor, question, report=report)
    every = found.best.with_others(found.front)
    _, first = np.unique(every.layouts["index"], return_index=True)
    ranked = best_of(every.take(first), max(1, len(first)))
    front = np.isin(ranked.layouts["index"], found.front.layouts["index"])
    layouts = [ranked.layouts.parallelism(row) for row in range(len(ranked))]
    best = replace(found, best=found.best.take(np.arange(min(1, len(found.best)))), front=nothing())
    result = answer(estimator, question, best, begin=begin)
    of_best = {name: value for name, value in result.to_dict().items() if name not in _OF_BEST_ALONE}
    return {
        "format": LAYOUTS_FORMAT,
        **of_best,
        "why_nothing": result.why_nothing(),
        "model_flops": None if result.best is None else result.best.estimate.model_flops,
        "tokens_per_step": question.space.global_batch * question.space.sample_length,
        "columns": list(COLUMNS),
        "rows": [[getattr(one, name) for name in COLUMNS] for one in layouts],
        "step_time_s": (ranked.step_us * 1e-6).tolist(),
        "memory_bytes": np.round(ranked.memory_bytes).astype(np.int64).tolist(),
        "nccl_bytes": _nccl_bytes(question, ranked.layouts) if layouts else [],
        "devices": ranked.layouts.devices.tolist() if layouts else [],
        "front": np.flatnonzero(front).tolist(),
    }


def _nccl_bytes(question: Question, layouts: Layouts) -> list[int]:
    """What NCCL's buffers take on a device of every layout, next to what torch allocates."""
    found = sum(communicator_bytes(layouts).values(), np.zeros(len(layouts), dtype=np.int64))
    taken: list[int] = (found * question.has_nccl).tolist()
    return taken
