"""POST /search: the question of `kernelcast search`, from JSON, and its answer `kernelcast.search/1`."""

import time
from collections.abc import Callable
from typing import Any

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.request.layout import DEFAULT_BUCKET_ENTRIES, MAX_DEGREE
from kernelcast.runtime.request.model import require_integer
from kernelcast.runtime.search import NumberSet, Question, Space, search
from kernelcast.runtime.search.defaults import usual_gpu_memory_bytes, usual_gpus_per_node
from kernelcast.runtime.search.space import divisors
from kernelcast.serve.bodies import check_fields, items_of, require_field
from kernelcast.serve.limits import Limits
from kernelcast.serve.models import find_model, with_length
from kernelcast.serve.schemas import MAX_TOP, SEARCH
from kernelcast.serve.warm import Warm

_LIMITS = ("pp", "tp", "dp", "micro_batch", "micro_batches", "virtual_stages")
_TEXTS = ("schedules", "recompute")
# Ways to cut devices into degrees times micro-batches: what going through a space takes, however few are valid.
_MAX_UNITS = 50_000


def search_layouts(warm: Warm, values: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the search is larger or takes longer than allowed.
        DataError: a regressor answers nonsense.
    """
    question = _question(warm, values)
    in_time = _clock(limits.time_s)
    _check_size(question.space, limits.max_search_layouts, in_time)
    result = search(warm.estimator, question, report=lambda done, total, what: in_time())
    return result.to_dict()


def _question(warm: Warm, values: dict[str, Any]) -> Question:
    check_fields(values, SEARCH, may_be_null=("gpu_memory_bytes",))
    model = with_length(
        find_model(require_field(values, "model"), warm.models), values.get("sequence_length")
    )
    require_field(values, "gpus")
    sizes = items_of(values, "gpus", int, "whole numbers")
    for size in sizes:
        require_integer("gpus", size, low=1, high=MAX_DEGREE)
    asked: dict[str, Any] = {name: _numbers(values, name) for name in _LIMITS if name in values}
    asked |= {name: items_of(values, name, str, "a list of texts") for name in _TEXTS if name in values}
    if "zero" in values:
        asked["zero"] = items_of(values, "zero", int, "a list of whole numbers")
    if "sequence_parallel" in values:
        asked["sequence_parallel"] = items_of(values, "sequence_parallel", bool, "a list of true and false")
    bundle = warm.estimator.bundle
    top = values.get("top", 10)
    require_integer("top", top, low=1, high=MAX_TOP)
    return Question(
        space=Space(
            model=model,
            gpus=sizes,
            global_batch=require_field(values, "global_batch"),
            gpus_per_node=values["gpus_per_node"]
            if "gpus_per_node" in values
            else usual_gpus_per_node(bundle, sizes),
            **asked,
        ),
        timeline=values.get("timeline", "simulate"),
        rank_by=values.get("rank_by", "step-time"),
        gpu_memory_bytes=values["gpu_memory_bytes"]
        if "gpu_memory_bytes" in values
        else usual_gpu_memory_bytes(bundle),
        top=top,
        bucket_entries=values.get("bucket_entries", DEFAULT_BUCKET_ENTRIES),
    )


def _numbers(values: dict[str, Any], name: str) -> NumberSet:
    if isinstance(values[name], str):
        return NumberSet.parse(values[name], name=name)
    listed = items_of(values, name, int, "whole numbers, or a text such as 1,2,4-8")
    for number in listed:
        require_integer(name, number, low=1, high=MAX_DEGREE)
    return NumberSet(tuple((number, number) for number in listed))


def _clock(time_s: float) -> Callable[[], None]:
    begin = time.monotonic()

    def check() -> None:
        if time.monotonic() - begin > time_s:
            raise UsageError(
                f"search takes longer than {time_s:g} s, expected a smaller one (limits on pp, micro_batch …)"
            )

    return check


def _check_size(space: Space, most: int, in_time: Callable[[], None]) -> None:
    """Refuse a search before it takes time; its layouts are listed for that, which is quick beside their times."""
    updates = len(divisors(space.global_batch))
    units = sum(
        len(divisors(size // stages)) * updates
        for size in space.gpus
        for stages in divisors(size)
        if space.pp is None or stages in space.pp
    )
    if units > _MAX_UNITS:
        raise UsageError(
            f"gpus is {shown(list(space.gpus))} with global_batch {space.global_batch}: {units} ways to cut them, "
            f"expected at most {_MAX_UNITS}"
        )
    layouts = 0
    for block, _ in space.blocks():
        layouts += len(block)
        in_time()
        if layouts > most:
            raise UsageError(
                f"search has more than {most} layouts, expected fewer (limits on pp, micro_batch …)"
            )
