"""The fastest layout of a question, and the fastest ones that differ from it in kind."""

import time
from typing import Any

from kernelcast.runtime.dataclass import asdict, dataclass, replace
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.intent.open_request import OpenRequest
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.search.partial_result import Counts, Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.result import Answer, SearchResult, Smallest
from kernelcast.runtime.search.sweep import sweep

RUNNERS_UP = 2
_FEW_FIELDS = ("schedule", "virtual_stages", "recompute", "sequence_parallel", "micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """A layout of another kind than the best one, and how much longer its step is (0.05: 5 %)."""

    estimate: Estimate
    slower: float
    differs_in: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        answer = Answer(parallelism=self.estimate.parallelism, estimate=self.estimate)
        return {**answer.to_dict(), "slower": self.slower, "differs_in": list(self.differs_in)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest layout, at most `RUNNERS_UP` others, best first, and what was looked at.

    All are of different kinds: they differ in a parallel degree, or in whether parameters are sharded (ZeRO-3).
    """

    estimate: Estimate
    runners_up: tuple[RunnerUp, ...]
    counts: Counts
    seconds: float

    def counted(self) -> dict[str, Any]:
        """How many layouts were looked at, and how long it took."""
        return {**asdict(self.counts), "seconds": self.seconds}


def find_best(request: OpenRequest) -> Best:
    """Search the whole space of a request.

    Raises:
        DataError: no layout is valid, fits, or has an answer; or a regressor answers nonsense.
    """
    begin = time.perf_counter()
    question = replace(request.question, top=1 + RUNNERS_UP, by_kind=True)
    found = sweep(request.estimator.predictor, question)
    require_answer(question, found)
    best, *others = (request.estimate(found.best.layouts.parallelism(row)) for row in range(len(found.best)))
    return Best(
        estimate=best,
        runners_up=tuple(
            RunnerUp(
                estimate=one,
                slower=one.step_time_s / best.step_time_s - 1,
                differs_in=_differences(one.parallelism, best.parallelism),
            )
            for one in others
        ),
        counts=found.counts,
        seconds=time.perf_counter() - begin,
    )


def require_answer(question: Question, found: Found) -> None:
    """Refuse what has no answer.

    Raises:
        DataError: nothing was found; says why.
    """
    if len(found.best):
        return
    smallest = None
    if len(found.smallest):
        layout = found.smallest.layouts.parallelism(0)
        smallest = Smallest(parallelism=layout, memory_bytes=round(found.smallest.memory_bytes[0]))
    nothing = SearchResult(
        question=question,
        counts=found.counts,
        refusals=found.refusals,
        problems=tuple(found.problems.values()),
        top=(),
        front=(),
        smallest=smallest,
        seconds=0.0,
    )
    raise DataError(nothing.why_nothing())


def _differences(one: Parallelism, best: Parallelism) -> tuple[str, ...]:
    """What differs, in words: `tp 2 instead of 1`; degrees first."""
    names = {"zero": "ZeRO"}
    return tuple(
        f"{names.get(name, name.replace('_', ' '))} {_word(getattr(one, name))} "
        f"instead of {_word(getattr(best, name))}"
        for name in (*DEGREES, *EXPERT_DEGREES, "zero", *_FEW_FIELDS)
        if getattr(one, name) != getattr(best, name)
    )


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
