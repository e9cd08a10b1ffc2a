"""A request that leaves parts of the layout open: its fastest layout, and the fastest ones that differ in kind."""

import time
from collections.abc import Mapping
from math import prod
from typing import Any, Self

from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import asdict, dataclass, replace
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES, MEMORY, SAMPLES, STACK
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.search.partial_result import Counts, Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import LIMITS, read_question
from kernelcast.runtime.search.result import Answer
from kernelcast.runtime.search.search import answer
from kernelcast.runtime.search.sweep import sweep

MOST_LAYOUTS_KEPT = 100
"""How many of the best layouts are looked through for runners-up of another kind."""

_OPTIONS = (
    "gpus",
    "global_batch",
    "gpus_per_node",
    *MEMORY,
    "fit_probability",
    "timeline",
    "bucket_entries",
    "framework",
    *STACK,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A search with an estimator. `cluster` and `gpu_memory_bytes` are None if not given."""

    estimator: Estimator
    question: Question
    cluster: Cluster | None
    gpu_memory_bytes: int | None

    def estimate(self, layout: Parallelism) -> Estimate:
        """The estimate of one of its layouts, as `Estimator.predict` answers it without a search."""
        return self.estimator.predict(
            model=self.question.space.model,
            parallelism=layout,
            **values_of(self, "cluster", "gpu_memory_bytes"),
            **values_of(self.question, "bucket_entries", "timeline", "reserved_memory_bytes", "fabric"),
        )

    def with_space(self, **limits: Any) -> Self:
        """The same request with other fields of its space."""
        space = replace(self.question.space, **limits)
        return replace(self, question=replace(self.question, space=space))


def read_open_request(
    values: Mapping[str, Any], *, model: ModelConfig, estimator: Estimator, fabric: FabricChoice | None = None
) -> OpenRequest:
    """The request of `values` by field name, with `gpus` (one number) and `global_batch`; layout fields that are not
    given are open, as in a search. UsageError where a field is missing, wrong or contradicted.
    """
    check_open_request(values)
    limits = {name: (values[name],) for name in LIMITS if name in values}
    if "schedule" in values:
        limits["schedules"] = (values["schedule"],)
    elif values.get("virtual_stages", 1) > 1:
        limits["schedules"] = ("interleaved",)
    options = {name: values[name] for name in _OPTIONS if name in values}
    question = read_question(
        {**options, **limits, "top": MOST_LAYOUTS_KEPT}, model=model, bundle=estimator.bundle, fabric=fabric
    )
    return OpenRequest(
        estimator=estimator,
        question=replace(question, front=False),
        cluster=question.cluster if "gpus_per_node" in values else None,
        gpu_memory_bytes=values.get("gpu_memory_bytes"),
    )


def check_open_request(values: Mapping[str, Any]) -> None:
    """UsageError where layers are fixed, degrees do not make up the devices, or micro-batches not the batch."""
    if "layer_counts" in values:
        fields = ("layer_counts", "layer_split")
        raise UsageError("{} is given with a search, which spreads the layers itself ({})", fields=fields)
    for whole, parts in (("gpus", DEGREES), ("global_batch", SAMPLES)):
        given = [name for name in parts if name in values]
        if whole not in values or not given:
            continue
        product = prod(values[name] for name in given)
        # Degrees beyond pp, tp and dp are 1 where they are not given.
        must_equal = set(given) >= set(parts) & {"pp", "tp", *SAMPLES}
        if (values[whole] != product) if must_equal else (values[whole] % product):
            terms = " · ".join(given)
            numbers = " · ".join(str(values[name]) for name in given)
            result = f"{numbers} = {product}" if len(given) > 1 else numbers
            multiple = "" if must_equal else "a multiple of "
            raise UsageError(field=whole, found=values[whole], expected=f"{multiple}{terms} ({result})")


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
    """The fastest layout, a few others that differ in a degree or in ZeRO-3, best first, and what was looked at."""

    estimate: Estimate
    runners_up: tuple[RunnerUp, ...]
    counts: Counts
    seconds: float

    def counted(self) -> dict[str, Any]:
        return {**asdict(self.counts), "seconds": self.seconds}


def find_best(request: OpenRequest) -> Best:
    """Search the whole space; DataError where no layout is valid, fits, or has an answer, or an answer is nonsense."""
    begin = time.perf_counter()
    question = replace(request.question, top=1 + RUNNERS_UP, by_kind=True)
    found = sweep(request.estimator.predictor, question)
    require_answer(request.estimator, question, found)
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


def require_answer(estimator: Estimator, question: Question, found: Found) -> None:
    """DataError where nothing was found: why, and with which single changes the smallest layout would fit."""
    if not len(found.best):
        raise DataError(answer(estimator, question, found, begin=time.perf_counter()).why_nothing())


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
