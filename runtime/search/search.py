"""From a question to its answer: sweep the space, then estimate the layouts that were found in full."""

import time
from contextlib import suppress

from kernelcast.runtime.errors import KernelcastError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.estimate.fitting_changes import FittingChange, fitting_changes
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import MEMORY
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import Ranked
from kernelcast.runtime.search.result import Answer, SearchResult, Smallest
from kernelcast.runtime.search.sweep import Report, sweep


def search(estimator: Estimator, question: Question, *, report: Report | None = None) -> SearchResult:
    """Evaluate every layout of a space; `report` is told now and then how far it is.

    The times are those that `Estimator.predict` gives, computed for thousands of layouts at once.

    Raises:
        DataError: a regressor answers nonsense.
    """
    begin = time.perf_counter()
    found = sweep(estimator.predictor, question, report=report)
    return answer(estimator, question, found, begin=begin)


def answer(estimator: Estimator, question: Question, found: Found, *, begin: float) -> SearchResult:
    """Make the answer from what was found; `begin` is when the search began, on `time.perf_counter`'s clock."""
    known: dict[int, Answer] = {}

    def answers(ranked: Ranked) -> tuple[Answer, ...]:
        for row, index in enumerate(ranked.layouts["index"].tolist()):
            if index not in known:
                layout = ranked.layouts.parallelism(row)
                known[index] = Answer(parallelism=layout, estimate=_estimate(estimator, question, layout))
        return tuple(known[index] for index in ranked.layouts["index"].tolist())

    top, front = answers(found.best), answers(found.front)
    return SearchResult(
        question=question,
        counts=found.counts,
        refusals=found.refusals,
        problems=tuple(found.problems.values()),
        top=top,
        front=front,
        smallest=_smallest(estimator, question, found),
        seconds=time.perf_counter() - begin,
    )


def _estimate(estimator: Estimator, question: Question, layout: Parallelism) -> Estimate:
    return estimator.predict(
        model=question.space.model,
        parallelism=layout,
        **values_of(question, "cluster", "bucket_entries", "timeline", *MEMORY, "fabric"),
    )


def _smallest(estimator: Estimator, question: Question, found: Found) -> Smallest | None:
    """The smallest layout, with what would make it fit where nothing does."""
    if not len(found.smallest):
        return None
    layout, memory_bytes = found.smallest.layouts.parallelism(0), round(found.smallest.memory_bytes[0])
    changes: tuple[FittingChange, ...] = ()
    if not len(found.best) and not found.counts.unanswered:
        with suppress(KernelcastError):
            changes = fitting_changes(
                estimator,
                _estimate(estimator, question, layout),
                **values_of(question, "fabric", "fit_probability"),
            )
    return Smallest(parallelism=layout, memory_bytes=memory_bytes, changes=changes)
