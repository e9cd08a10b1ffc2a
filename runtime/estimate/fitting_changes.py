"""What would help a step: single changes of its layout that make it fit or faster, each with time and memory."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import asdict, dataclass, replace
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate.device_memory import Memory, device_memory
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.frameworks.software import framework_named
from kernelcast.runtime.request.layout import Parallelism

_FACTORS = (2, 4, 8, 16)
_LEAST_GAIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingChange:
    """Fields that differ in a layout that fits; its step time, fullest device, and devices where they are more."""

    fields: dict[str, Any]
    step_time_s: float
    memory_bytes: int
    more_devices: int | None = None

    @property
    def fields_text(self) -> str:
        """The fields in words: `pp 2, dp 8`."""
        return ", ".join(
            f"{name} {'even' if value is None else value}" for name, value in self.fields.items()
        )

    @property
    def devices_text(self) -> str:
        """The number of devices in words, where they are more."""
        return "" if self.more_devices is None else f"{self.more_devices:,} devices"


def fitting_changes(
    estimator: Estimator,
    estimate: Estimate,
    *,
    fabric: FabricChoice | None = None,
    fit_probability: float | None = None,
) -> tuple[FittingChange, ...]:
    """Of every kind of change the least that makes `estimate` fit, the fastest first; none where it fits. Where only
    more devices do, also each with full recomputation. Samples per update stay; with `fit_probability`, what fits fits
    with it.
    """
    if not _is_short(estimate.memory, fit_probability):
        return ()
    found: list[FittingChange] = []
    for more in ({}, {"recompute": "full"}):
        for kind in _kinds(estimate.parallelism):
            tried = (_changed(estimator, estimate, fields | more, fabric, fit_probability) for fields in kind)
            found += islice(filter(None, tried), 1)
        if any(one.more_devices is None for one in found):
            break
    return tuple(sorted(found, key=lambda one: one.step_time_s))


def faster_changes(
    estimator: Estimator,
    estimate: Estimate,
    *,
    framework: str | None = None,
    fabric: FabricChoice | None = None,
) -> tuple[FittingChange, ...]:
    """The best of every kind of change that shortens the step by 1 % or more, fits and, where given, the `framework`
    runs; the fastest first. Samples per update stay; the last kind has twice the devices.
    """
    software = None if framework is None else framework_named(framework)
    limit_s = estimate.step_time_s * (1 - _LEAST_GAIN)
    found = []
    for kind in _faster_kinds(estimate.parallelism):
        tried = [
            change
            for fields in kind
            if software is None or software.runs(asdict(replace(estimate.parallelism, **fields)))
            if (change := _changed(estimator, estimate, fields, fabric)) and change.step_time_s <= limit_s
        ]
        found += sorted(tried, key=lambda one: one.step_time_s)[:1]
    return tuple(sorted(found, key=lambda one: one.step_time_s))


def _is_short(memory: Memory, fit_probability: float | None) -> bool:
    """Whether a layout does not fit, or with less than a probability."""
    if fit_probability is None or memory.fit_probability is None:
        return memory.fits is False
    return memory.fit_probability < fit_probability


def _changed(
    estimator: Estimator,
    estimate: Estimate,
    fields: dict[str, Any],
    fabric: FabricChoice | None,
    fit_probability: float | None = None,
) -> FittingChange | None:
    """A change, None where it does not fit, is not valid or has no answer."""
    memory = estimate.memory
    size = memory.gpu_memory_bytes, memory.reserved_bytes
    try:
        other = replace(estimate.parallelism, **fields)
        other.check(estimate.model)
        if _is_short(device_memory(estimator.bundle, estimate.model, other, *size), fit_probability):
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
    return FittingChange(
        fields=fields,
        step_time_s=changed.step_time_s,
        memory_bytes=changed.memory.largest_bytes,
        more_devices=other.world_size if other.world_size > estimate.parallelism.world_size else None,
    )


def _faster_kinds(layout: Parallelism) -> Iterator[list[dict[str, Any]]]:
    """Changes by kind that may shorten a step."""
    ways = ["none", "selective", "full"]
    yield [{"recompute": way} for way in ways[: ways.index(layout.recompute)]]
    yield [{"zero": zero} for zero in range(4) if zero != layout.zero and layout.replicas > 1]
    yield [{"objective": "dpo_precomputed"}] if layout.objective == "dpo" else []
    batch, count, dp = layout.micro_batch, layout.micro_batches, layout.dp
    yield [{"micro_batch": batch * k, "micro_batches": count // k} for k in _FACTORS if count % k == 0]
    yield [{"micro_batch": batch // k, "micro_batches": count * k} for k in _FACTORS if batch % k == 0]
    overlaps = {"overlap_gradients": True, "overlap_parameters": True}
    yield [overlaps] if layout.replicas > 1 and not layout.overlap_gradients else []
    yield [{"frozen_weights": "same"}] if layout.frozen_weights != "same" else []
    is_launched = layout.host_launch_us and layout.cuda_graphs == "none"
    yield [{"cuda_graphs": "full"}] if is_launched and layout.kept_by == "megatron" else []
    yield [{"sequence_parallel": True}] if layout.tp > 1 and not layout.sequence_parallel else []
    cut = {"layer_counts": None} if layout.layer_counts else {}
    for degree, more in (("tp", {}), ("pp", cut)):
        size = getattr(layout, degree)
        lower = [
            {degree: size // k, "dp": dp * k, "micro_batches": count // k} | more
            for k in _FACTORS
            if size % k == 0 and count % k == 0
        ]
        higher = [
            {degree: size * k, "dp": dp // k, "micro_batches": count * k} | more
            for k in _FACTORS
            if dp % k == 0
        ]
        yield lower + higher
    yield [{"virtual_stages": k, "schedule": "interleaved"} | cut for k in (2, 4, 8)] if layout.pp > 1 else []
    yield [{"dp": 2 * dp, "micro_batches": count // 2}] if count % 2 == 0 else []


def _kinds(layout: Parallelism) -> Iterator[list[dict[str, Any]]]:
    """Changes by kind, the least first."""
    ways = ["none", "selective", "full"]
    yield [{"recompute": way} for way in ways[ways.index(layout.recompute) + 1 :]]
    yield [{"zero": zero} for zero in range(layout.zero + 1, 4)] if layout.dp > 1 else []
    yield [{"optimizer_states": states} for states in ("bfloat16", "8bit")]
    yield [{"offload_optimizer": 1.0}] if layout.offload_optimizer < 1 else []
    yield [{"offload_activations": 1.0}] if layout.offload_activations < 1 else []
    is_16_bit = layout.frozen_weights == "same" and layout.fp8_recipe == "none"
    yield [{"frozen_weights": "nf4"}] * is_16_bit if layout.lora_rank else [{"lora_rank": 16}]
    more = layout.micro_batches
    yield [{"objective": "dpo_precomputed"}] if layout.objective == "dpo" else []
    yield [{"dp": layout.dp * k, "micro_batches": more // k} for k in _FACTORS if more % k == 0]
    batch, count = layout.micro_batch, layout.micro_batches
    yield [{"micro_batch": batch // k, "micro_batches": count * k} for k in _FACTORS if batch % k == 0]
    cut = {"layer_counts": None} if layout.layer_counts else {}
    yield [{"pp": layout.pp * k} | cut for k in _FACTORS]
    for degree, also in (("tp", {}), ("pp", cut)):
        yield [
            {degree: getattr(layout, degree) * k, "dp": layout.dp // k, "micro_batches": count * k} | also
            for k in _FACTORS
            if layout.dp % k == 0
        ]
