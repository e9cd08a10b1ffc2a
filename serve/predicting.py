"""POST /predict: the question of `kernelcast predict`, from JSON, and its answer `kernelcast.estimate/1`."""

from typing import Any

from kernelcast.runtime import Cluster, Parallelism, UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.request.layout import DEFAULT_BUCKET_ENTRIES
from kernelcast.serve.bodies import check_fields, require_field
from kernelcast.serve.models import find_model, with_length
from kernelcast.serve.schemas import PREDICT
from kernelcast.serve.warm import Warm

_LAYOUT = ("recompute", "schedule", "virtual_stages", "zero", "sequence_parallel")
_DEGREES = ("pp", "tp", "dp")


def predict(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing, wrong, or does not go with the others.
        DataError: the bundle lacks an operator that the model needs.
    """
    check_fields(values, PREDICT)
    estimate = warm.estimator.predict(
        model=with_length(
            find_model(require_field(values, "model"), warm.models), values.get("sequence_length")
        ),
        parallelism=layout(values),
        cluster=Cluster(gpus_per_node=values["gpus_per_node"]) if "gpus_per_node" in values else None,
        bucket_entries=values.get("bucket_entries", DEFAULT_BUCKET_ENTRIES),
        timeline=values.get("timeline", "simulate"),
        gpu_memory_bytes=values.get("gpu_memory_bytes"),
    )
    return estimate.to_dict()


def layout(values: dict[str, Any]) -> Parallelism:
    """The layout that a request describes; degrees that are not given are 1.

    Raises:
        UsageError: a field is missing or wrong.
    """
    given: dict[str, Any] = {name: values.get(name, 1) for name in _DEGREES}
    given["micro_batch"] = require_field(values, "micro_batch")
    given |= {name: values[name] for name in _LAYOUT if name in values}
    if "layer_counts" in values:
        counts = values["layer_counts"]
        if not isinstance(counts, list):
            raise UsageError(
                f"layer_counts is {shown(counts)}, expected a list of whole numbers, one per stage"
            )
        given["layer_counts"] = tuple(counts)
    if ("micro_batches" in values) == ("global_batch" in values):
        found = "both" if "micro_batches" in values else "neither"
        raise UsageError(f"{found} of micro_batches and global_batch given, expected one of them")
    if "global_batch" in values:
        return Parallelism.from_global_batch(global_batch=values["global_batch"], **given)
    return Parallelism(micro_batches=values["micro_batches"], **given)
