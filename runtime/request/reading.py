"""Layouts and questions from plain values by field name, as options, files and JSON bodies give them."""

from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import LAYOUT, MEMORY, REQUEST
from kernelcast.runtime.request.layout import Cluster, Parallelism


def read_layout(values: Mapping[str, Any]) -> Parallelism:
    """The layout of `values`, whose other fields do not matter. Degrees that are not given are 1.

    Raises:
        UsageError: a field is missing or wrong, or both of micro_batches and global_batch are given.
    """
    given = {name: values.get(name, LAYOUT[name].default) for name in LAYOUT}
    if "micro_batch" not in values:
        expected = LAYOUT["micro_batch"].kind.expected
        raise UsageError(f"micro_batch is not given, expected {expected}", field="micro_batch")
    if ("micro_batches" in values) == ("global_batch" in values):
        found = "both" if "micro_batches" in values else "neither"
        raise UsageError(f"{found} of micro_batches and global_batch given, expected one of them")
    if isinstance(given["layer_counts"], list):
        given["layer_counts"] = tuple(given["layer_counts"])
    if "global_batch" in values:
        del given["micro_batches"]
        return Parallelism.from_global_batch(global_batch=values["global_batch"], **given)
    return Parallelism(**given)


def read_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Estimator.predict` apart from the model: layout, cluster, and the options that are given.

    Raises:
        UsageError: as `read_layout`.
    """
    options = {name: values.get(name, REQUEST[name].default) for name in ("bucket_entries", "timeline")}
    options |= {name: values[name] for name in MEMORY if name in values}
    for name, value in options.items():
        (MEMORY.get(name) or REQUEST[name]).check(value)
    return {
        "parallelism": read_layout(values),
        "cluster": Cluster(gpus_per_node=values["gpus_per_node"]) if "gpus_per_node" in values else None,
        **options,
    }
