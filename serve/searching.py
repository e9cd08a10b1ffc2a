"""POST /search and /layouts: the question of `kernelcast search`, from JSON, and its answer as JSON."""

import time
from collections.abc import Callable
from typing import Any

from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.request.field_types import require_integer
from kernelcast.runtime.request.models import FoundModel
from kernelcast.runtime.search.compact import compact_search
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space, divisors
from kernelcast.serve.answering import find_fabric, model_of, of_request
from kernelcast.serve.bodies import known_fields
from kernelcast.serve.limits import Limits
from kernelcast.serve.schemas import MAX_LAYOUTS, MAX_TOP, SEARCH_FIELDS
from kernelcast.serve.warm import Warm

# Ways to cut devices into degrees times micro-batches: what going through a space takes, however few are valid.
_MAX_UNITS = 50_000

IsGone = Callable[[], bool]
"""Whether the client has stopped waiting for the answer."""


class NobodyWaits(Exception):
    """The search ended because its client has left."""


def search_layouts(
    warm: Warm, values: dict[str, Any], limits: Limits, is_gone: IsGone = lambda: False
) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the search is larger or takes longer than allowed.
        DataError: a regressor answers nonsense.
        NobodyWaits: the client has left.
    """
    check = _check(limits.time_s, is_gone)
    found, estimator, question = _question(warm, values, limits, check, most=MAX_TOP)
    result = search(estimator, question, report=lambda done, total, what: check())
    return found.with_notes(result.to_dict())


def compact_layouts(
    warm: Warm, values: dict[str, Any], limits: Limits, is_gone: IsGone = lambda: False
) -> dict[str, Any]:
    """Answer one question with many layouts in a compact form; errors as `search_layouts`."""
    check = _check(limits.time_s, is_gone)
    found, estimator, question = _question(warm, values, limits, check, most=MAX_LAYOUTS)
    return found.with_notes(compact_search(estimator, question, report=lambda done, total, what: check()))


def _question(
    warm: Warm, values: dict[str, Any], limits: Limits, check: Callable[[], None], *, most: int
) -> tuple[FoundModel, Estimator, Question]:
    check()
    values = known_fields(values, SEARCH_FIELDS, may_be_null=("gpu_memory_bytes",))
    found = model_of(warm, values).require_length()
    require_integer("top", values.get("top", 1), low=1, high=most)
    estimator, values = of_request(warm, values)
    question = read_question(
        values,
        model=found.model,
        bundle=estimator.bundle,
        fabric=find_fabric(values.get("fabric"), warm.fabrics),
    )
    _check_size(question.space, limits.max_search_layouts, check)
    return found, estimator, question


def _check(time_s: float, is_gone: IsGone) -> Callable[[], None]:
    begin = time.monotonic()

    def check() -> None:
        if is_gone():
            raise NobodyWaits
        if time.monotonic() - begin > time_s:
            raise UsageError(
                f"search takes longer than {time_s:g} s, expected a smaller one (limits on pp, micro_batch …)"
            )

    return check


def _check_size(space: Space, most: int, check: Callable[[], None]) -> None:
    """Refuse a search that is too large before it starts; listing its layouts is quick compared to timing them."""
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
        check()
        if layouts > most:
            raise UsageError(
                f"search has more than {most} layouts, expected fewer (limits on pp, micro_batch …)"
            )
