"""From a question to its answer: sweep the space, then estimate the layouts that were found in full."""

import time

from kernelcast.runtime.estimate.estimator import Estimator
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
                parallelism = ranked.layouts.parallelism(row)
                estimate = estimator.predict(
                    model=question.space.model,
                    parallelism=parallelism,
                    cluster=question.cluster,
                    bucket_entries=question.bucket_entries,
                    timeline=question.timeline,
                    gpu_memory_bytes=question.gpu_memory_bytes,
                    reserved_memory_bytes=question.reserved_memory_bytes,
                    fabric=question.fabric,
                )
                known[index] = Answer(parallelism=parallelism, estimate=estimate)
        return tuple(known[index] for index in ranked.layouts["index"].tolist())

    smallest = None
    if len(found.smallest):
        smallest = Smallest(
            parallelism=found.smallest.layouts.parallelism(0),
            memory_bytes=round(found.smallest.memory_bytes[0]),
        )
    top, front = answers(found.best), answers(found.front)
    return SearchResult(
        question=question,
        counts=found.counts,
        refusals=found.refusals,
        problems=tuple(found.problems.values()),
        top=top,
        front=front,
        smallest=smallest,
        seconds=time.perf_counter() - begin,
    )
