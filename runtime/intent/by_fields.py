"""Questions by the names of request fields, as the command line asks them: `predict` and `search_layouts`."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from kernelcast.runtime.answers.fabric_choice import FabricChoice, find_fabric
from kernelcast.runtime.catalogue import shipped_names
from kernelcast.runtime.errors import UsageError, unknown_field
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.frameworks.software import choose_software
from kernelcast.runtime.intent.answer import answer
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.request.fields import MEMORY, REQUEST, SEARCH, SHARED, renamed
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.search.read_question import LIMITS, read_question
from kernelcast.runtime.search.result import SearchResult
from kernelcast.runtime.search.search import search

_OF_QUESTION = (
    "framework",
    "sequence_length",
    "global_batch",
    "gpus_per_node",
    "fabric",
    "timeline",
    "bucket_entries",
)


def predict(
    estimator: Estimator,
    model: ModelConfig | str | os.PathLike[str],
    *,
    gpus: int | None = None,
    **fields: Any,
) -> Estimate:
    """What `kernelcast predict` answers; `fields` are its options with `_` for `-`, sizes of memory in bytes.

    With `gpus` and `global_batch` the fastest layout, where `fields` fix what they name; else the layout of `fields`.
    `fabric` is a name or a file, as the model is. Options of the estimator's stack hold unless fields say otherwise;
    without one, a `framework` brings its stack. UsageError where a field is unknown, missing or wrong, or there is no
    such model, fabric or file; DataError where no layout is valid, fits, or has an answer.

    >>> h100 = Estimator.load("h100-sxm")
    >>> estimate = predict(h100, "llama-3-8b", gpus=64, global_batch=512)
    >>> estimate.parallelism.world_size, 0.3 < estimate.mfu < 0.7
    (64, True)
    >>> predict(h100, "llama-3-8b", tp=2, dp=32, micro_batch=1, global_batch=512).parallelism.micro_batches
    16
    >>> predict(h100, "llama-3-8b", gpus=64, global_batchs=512)
    Traceback (most recent call last):
        ...
    kernelcast.runtime.errors.UsageError: field 'global_batchs' is unknown (did you mean global_batch?), known are …
    """
    estimator, found, fabric, values = read_question_fields(
        estimator, model, fields, (*REQUEST, *MEMORY, "fit_probability"), is_open=gpus is not None
    )
    wish = Wish(gpus=gpus)
    wish.check(values, ())
    return answer(estimator, wish, values, model=found, fabric=fabric).estimate


def search_layouts(
    estimator: Estimator, model: ModelConfig | str | os.PathLike[str], **fields: Any
) -> SearchResult:
    """What `kernelcast search` answers; `fields` as for `predict`, and limits of the layout: a value or several.
    UsageError where a field is unknown, missing or wrong, or there is no such model, fabric or file; DataError where a
    regressor answers nonsense.

    >>> h100 = Estimator.load("h100-sxm")
    >>> result = search_layouts(h100, "llama-3-8b", gpus=64, global_batch=512, tp=(1, 2), top=3)
    >>> len(result.top), result.best.parallelism.tp in (1, 2)
    (3, True)
    """
    known = (*_OF_QUESTION, *SEARCH, *LIMITS, *SHARED, *MEMORY)
    estimator, found, fabric, values = read_question_fields(estimator, model, fields, known)
    return search(estimator, read_question(values, model=found, bundle=estimator.bundle, fabric=fabric))


def read_question_fields(
    estimator: Estimator,
    model: ModelConfig | str | os.PathLike[str],
    fields: Mapping[str, Any],
    known: Iterable[str],
    *,
    is_open: bool | None = None,
) -> tuple[Estimator, ModelConfig, FabricChoice | None, dict[str, Any]]:
    """The estimator with the framework's stack where it has none, the model, the fabric, and the other fields.
    UsageError where a field is not among `known`, or there is no such model, fabric or file.
    """
    values = renamed(fields, REQUEST)
    names = [name for name in known if name != "stack"]
    for name in values:
        if name == "stack":
            raise UsageError("stack is given with a question, expected an estimator with the stack")
        if name not in names:
            raise unknown_field(name, names)
    length = values.pop("sequence_length", None)
    if isinstance(model, ModelConfig):
        found = model if length is None else model.with_sequence_length(length)
    else:
        found = find_model(model, sequence_length=length).require_length().model
    fabric = values.pop("fabric", None)
    fabric = find_fabric(fabric) if isinstance(fabric, str | os.PathLike) else fabric
    is_open = "gpus" in values if is_open is None else is_open
    hardware = () if estimator.stack is not None else shipped_names(estimator.bundle)
    chosen = choose_software(values, hardware=hardware, is_open=is_open)
    if estimator.stack is not None:
        return estimator, found, fabric, estimator.stack.fill(chosen.values)
    if chosen.stack is not None:
        estimator = estimator.with_stack(chosen.stack)
    return estimator, found, fabric, chosen.values
