"""A request that leaves parts of the layout open: what is given is fixed, the rest is searched."""

from collections.abc import Mapping
from math import prod
from typing import Any, Self

from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.request.fields import DEGREES, MEMORY, SAMPLES, STACK
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import LIMITS, read_question

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
    """A search's question to an estimator. `cluster` and `gpu_memory_bytes` are None where they were not asked for."""

    estimator: Estimator
    question: Question
    cluster: Cluster | None
    gpu_memory_bytes: int | None

    def estimate(self, layout: Parallelism) -> Estimate:
        """The estimate of one of its layouts, as `Estimator.predict` answers it without a search."""
        return self.estimator.predict(
            model=self.question.space.model,
            parallelism=layout,
            cluster=self.cluster,
            bucket_entries=self.question.bucket_entries,
            timeline=self.question.timeline,
            gpu_memory_bytes=self.gpu_memory_bytes,
            reserved_memory_bytes=self.question.reserved_memory_bytes,
            fabric=self.question.fabric,
        )

    def with_space(self, **limits: Any) -> Self:
        """The same request with other fields of its space."""
        space = replace(self.question.space, **limits)
        return replace(self, question=replace(self.question, space=space))


def read_open_request(
    values: Mapping[str, Any], *, model: ModelConfig, estimator: Estimator, fabric: FabricChoice | None = None
) -> OpenRequest:
    """The request of `values` by field name, with `gpus` (one number) and `global_batch`.

    Fields of the layout that are given are fixed; of the others every value is allowed, as in a search.

    Raises:
        UsageError: a field is missing or wrong, or what is given contradicts itself.
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
    """Check what needs no bundle.

    Raises:
        UsageError: a layer's stage is fixed, degrees do not make up the devices, or micro-batches not the global batch.
    """
    if "layer_counts" in values:
        raise UsageError(
            "layer_counts is given with a search, expected not: it spreads the layers (layer_split)"
        )
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
