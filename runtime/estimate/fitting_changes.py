"""What would make a step fit that does not: single changes of its layout, each with the step time that it costs."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate.device_memory import device_memory
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.request.layout import Parallelism

_FACTORS = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingChange:
    """Fields of a layout that fits, where they differ from one that does not; its step time and fullest device."""

    fields: dict[str, Any]
    step_time_s: float
    memory_bytes: int


def fitting_changes(
    estimator: Estimator, estimate: Estimate, *, fabric: FabricChoice | None = None
) -> tuple[FittingChange, ...]:
    """Of every kind of change the least that makes `estimate` fit, the fastest first; none where it fits. Where no
    single one does, each with full recomputation.

    Devices and samples per update stay. What the bundle cannot answer is left out.
    """
    memory, layout = estimate.memory, estimate.parallelism
    if memory.fits is not False:
        return ()
    size = memory.gpu_memory_bytes, memory.reserved_bytes

    def fitting(fields: dict[str, Any]) -> FittingChange | None:
        try:
            other = replace(layout, **fields)
            other.check(estimate.model)
            if not device_memory(estimator.bundle, estimate.model, other, *size).fits:
                return None
            changed = estimator.predict(
                model=estimate.model,
                parallelism=other,
                cluster=estimate.cluster,
                bucket_entries=estimate.bucket_entries,
                timeline=estimate.timeline,
                interval=False,
                gpu_memory_bytes=size[0],
                reserved_memory_bytes=size[1],
                fabric=fabric,
            )
        except (UsageError, DataError):
            return None
        step_s, needed = changed.step_time_s, changed.memory.largest_bytes
        return FittingChange(fields=fields, step_time_s=step_s, memory_bytes=needed)

    found: list[FittingChange] = []
    for more in ({}, {"recompute": "full"}):
        for kind in _kinds(layout):
            found += islice(filter(None, (fitting(fields | more) for fields in kind)), 1)
        if found:
            break
    return tuple(sorted(found, key=lambda one: one.step_time_s))


def _kinds(layout: Parallelism) -> Iterator[list[dict[str, Any]]]:
    """Changes by kind, the least first."""
    ways = ["none", "selective", "full"]
    yield [{"recompute": way} for way in ways[ways.index(layout.recompute) + 1 :]]
    yield [{"zero": zero} for zero in range(layout.zero + 1, 4)] if layout.dp > 1 else []
    yield [{"optimizer_states": states} for states in ("bfloat16", "8bit")]
    yield [{"offload_optimizer": 1.0}] if layout.offload_optimizer < 1 else []
    yield [{"offload_activations": 1.0}] if layout.offload_activations < 1 else []
    batch, count = layout.micro_batch, layout.micro_batches
    yield [{"micro_batch": batch // k, "micro_batches": count * k} for k in _FACTORS if batch % k == 0]
    for degree in ("tp", "pp"):
        yield [
            {degree: getattr(layout, degree) * k, "dp": layout.dp // k, "micro_batches": count * k}
            | ({"layer_counts": None} if degree == "pp" and layout.layer_counts else {})
            for k in _FACTORS
            if layout.dp % k == 0
        ]
