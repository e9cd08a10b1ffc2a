"""POST /search: the question of `kernelcast search`, from JSON, and its answer as JSON."""

import time
from collections.abc import Callable
from typing import Any

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.request.fields import require_integer
from kernelcast.runtime.search import Space, search
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.space import divisors
from kernelcast.serve.bodies import known_fields, require_field
from kernelcast.serve.fabrics import find_fabric
from kernelcast.serve.limits import Limits
from kernelcast.serve.models import find_model
from kernelcast.serve.schemas import MAX_TOP, SEARCH_FIELDS
from kernelcast.serve.stacks import of_stack
from kernelcast.serve.warm import Warm

# Ways to cut devices into degrees times micro-batches: what going through a space takes, however few are valid.
_MAX_UNITS = 50_000


def search_layouts(warm: Warm, values: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the search is larger or takes longer than allowed.
        DataError: a regressor answers nonsense.
    """
    values = known_fields(values, SEARCH_FIELDS, may_be_null=("gpu_memory_bytes",))
    found = find_model(
        require_field(values, "model"), warm.models, sequence_length=values.get("sequence_length")
    ).require_length()
    require_integer("top", values.get("top", 1), low=1, high=MAX_TOP)
    estimator, values = of_stack(warm.estimator, values)
    question = read_question(
        values,
        model=found.model,
        bundle=estimator.bundle,
        fabric=find_fabric(values.get("fabric"), warm.fabrics),
    )
    in_time = _clock(limits.time_s)
    _check_size(question.space, limits.max_search_layouts, in_time)
    result = search(estimator, question, report=lambda done, total, what: in_time())
    return found.with_notes(result.to_dict())


def _clock(time_s: float) -> Callable[[], None]:
    begin = time.monotonic()

    def check() -> None:
        if time.monotonic() - begin > time_s:
            raise UsageError(
                f"search takes longer than {time_s:g} s, expected a smaller one (limits on pp, micro_batch …)"
            )

    return check


def _check_size(space: Space, most: int, in_time: Callable[[], None]) -> None:
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
        in_time()
        if layouts > most:
            raise UsageError(
                f"search has more than {most} layouts, expected fewer (limits on pp, micro_batch …)"
            )
