"""POST /predict, /plan, /search and the like: the questions of the commands, from JSON, and their answers."""

import time
from collections.abc import Callable
from typing import Any

from kernelcast.plan.fields import PLAN
from kernelcast.plan.planning import plan_of, read_plan
from kernelcast.runtime import Estimate, Estimator, UsageError
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import shown
from kernelcast.runtime.estimate.defaults import usual_gpu_memory_bytes, usual_reserved_bytes
from kernelcast.runtime.estimate.fitting_changes import fitting_changes
from kernelcast.runtime.frameworks import NAMES
from kernelcast.runtime.frameworks.layout_files import write_layout
from kernelcast.runtime.frameworks.rows import Job
from kernelcast.runtime.intent.answer import IntentAnswer
from kernelcast.runtime.request.field_types import whole
from kernelcast.runtime.request.layout import read_request
from kernelcast.runtime.request.model import FoundModel
from kernelcast.runtime.search.choices import choices
from kernelcast.runtime.search.compact import compact_search
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space, divisors
from kernelcast.runtime.views.chrome_trace import trace_lines
from kernelcast.runtime.views.estimate_page import page, pictures
from kernelcast.serve.answering import find_fabric, model_of, of_request
from kernelcast.serve.limits import Limits
from kernelcast.serve.loaded import Loaded
from kernelcast.serve.messages import known_fields
from kernelcast.serve.schemas import MAX_LAYOUTS, MAX_TOP, PREDICT, RUN_PLAN, SEARCH_FIELDS


def predict(loaded: Loaded, values: dict[str, Any]) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing, wrong, or does not go with the others.
        DataError: the bundle lacks an operator that the model needs.
    """
    found, estimate, estimator, fabric = _estimated(loaded, values)
    answer = IntentAnswer(
        estimate=estimate,
        changes=fitting_changes(estimator, estimate, fabric=fabric),
        framework=values.get("framework"),
    )
    shown = found.with_notes(answer.to_dict())
    if answer.framework in NAMES:
        job = Job(
            model=estimate.model,
            parallelism=estimate.parallelism,
            gpus_per_node=estimate.cluster.gpus_per_node,
            dtype=estimate.provenance.dtype,
        )
        shown["framework_arguments"] = asdict(write_layout(answer.framework, job))
    return shown


def predict_pictures(loaded: Loaded, values: dict[str, Any]) -> dict[str, Any]:
    """An answer's timeline and memory as SVG, and where its time goes; errors as `predict`."""
    return pictures(_estimated(loaded, values)[1])


def predict_page(loaded: Loaded, values: dict[str, Any]) -> bytes:
    return page(_estimated(loaded, values)[1]).encode()


def predict_trace(loaded: Loaded, values: dict[str, Any]) -> bytes:
    """The Chrome trace of an answer, JSON; errors as `predict`, and UsageError for a step with too many passes."""
    return "".join(trace_lines(_estimated(loaded, values)[1])).encode()


def _estimated(
    loaded: Loaded, values: dict[str, Any]
) -> tuple[FoundModel, Estimate, Estimator, FabricChoice | None]:
    found, estimator, fabric, arguments = _named(loaded, known_fields(values, PREDICT))
    return found, estimator.predict(model=found.model, fabric=fabric, **arguments), estimator, fabric


def _named(
    loaded: Loaded, values: dict[str, Any]
) -> tuple[FoundModel, Estimator, FabricChoice | None, dict[str, Any]]:
    """What the fields name, and the other arguments of `Estimator.predict`."""
    found = model_of(loaded, values)
    estimator, values = of_request(loaded, values)
    return found, estimator, find_fabric(values.get("fabric"), loaded.fabrics), read_request(values)


CHOICES_FORMAT = "kernelcast.choices/1"


def layout_choices(loaded: Loaded, values: dict[str, Any]) -> dict[str, Any]:
    """Answer one question, with the fields of /predict; form `kernelcast.choices/1`.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the layout itself is not valid.
    """
    named, estimator, _, arguments = _named(loaded, known_fields(values, PREDICT))
    bundle = estimator.bundle
    memory = arguments.get("gpu_memory_bytes", usual_gpu_memory_bytes(bundle))
    reserved = arguments.get("reserved_memory_bytes", usual_reserved_bytes(bundle))
    found = choices(
        arguments["parallelism"],
        named.model,
        bundle,
        usable_bytes=None if memory is None else max(0, memory - reserved),
        simulated=arguments["timeline"] == "simulate",
    )
    return {
        "format": CHOICES_FORMAT,
        "gpus": arguments["parallelism"].world_size,
        "global_batch": arguments["parallelism"].samples_per_update,
        "choices": {field: [one.to_dict() for one in several] for field, several in found.items()},
    }


def plan_run(loaded: Loaded, values: dict[str, Any]) -> dict[str, Any]:
    """Plan a run of the layout that `values` give; form `kernelcast.run-plan/1`.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the run makes no progress.
        DataError: the bundle lacks an operator that the model needs.
    """
    values = known_fields(values, RUN_PLAN)
    own = read_plan({name: value for name, value in values.items() if name in PLAN})
    values = {name: value for name, value in values.items() if name not in PLAN}
    found, estimator, fabric, arguments = _named(loaded, values)
    estimate = estimator.predict(model=found.model, fabric=fabric, **arguments)
    planned = plan_of(estimator, estimate, own, fabric=fabric)
    return found.with_notes(planned.to_dict(with_fan=True))


# Ways to cut devices into degrees times micro-batches: what going through a space takes, however few are valid.
_MAX_UNITS = 50_000

IsGone = Callable[[], bool]
"""Whether the client has stopped waiting for the answer."""


class NobodyWaits(Exception):
    """The search ended because its client has left."""


def search_layouts(
    loaded: Loaded, values: dict[str, Any], limits: Limits, is_gone: IsGone = lambda: False
) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the search is larger or takes longer than allowed.
        DataError: a regressor answers nonsense.
        NobodyWaits: the client has left.
    """
    check = _check(limits.time_s, is_gone)
    found, estimator, question = _question(loaded, values, limits, check, most=MAX_TOP)
    result = search(estimator, question, report=lambda done, total, what: check())
    return found.with_notes(result.to_dict())


def compact_layouts(
    loaded: Loaded, values: dict[str, Any], limits: Limits, is_gone: IsGone = lambda: False
) -> dict[str, Any]:
    """Answer one question with many layouts in a compact form; errors as `search_layouts`."""
    check = _check(limits.time_s, is_gone)
    found, estimator, question = _question(loaded, values, limits, check, most=MAX_LAYOUTS)
    return found.with_notes(compact_search(estimator, question, report=lambda done, total, what: check()))


def _question(
    loaded: Loaded, values: dict[str, Any], limits: Limits, check: Callable[[], None], *, most: int
) -> tuple[FoundModel, Estimator, Question]:
    check()
    values = known_fields(values, SEARCH_FIELDS, may_be_null=("gpu_memory_bytes",))
    found = model_of(loaded, values).require_length()
    whole(1, most).check("top", values.get("top", 1))
    estimator, values = of_request(loaded, values)
    question = read_question(
        values,
        model=found.model,
        bundle=estimator.bundle,
        fabric=find_fabric(values.get("fabric"), loaded.fabrics),
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
