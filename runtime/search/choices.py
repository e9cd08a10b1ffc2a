"""Alternative values of one field of a layout, on the same devices with the same global batch, and their layouts."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.defaults import has_gpus
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.request.fields import EXPERT_DEGREES, OPTIONS, SEARCH, SEARCHED
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, check_simulated
from kernelcast.runtime.search.needed_memory import needed_bytes
from kernelcast.runtime.search.space import divisors
from kernelcast.runtime.step.chunks import partition
from kernelcast.runtime.step.layouts import Layouts

CHOSEN = ("tp", "pp", "dp", "cp", *EXPERT_DEGREES, "micro_batch")
_REST = {"tp": "dp", "pp": "dp", "cp": "dp", "dp": "pp"}
"""The degree that absorbs the devices that a changed degree leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One value of a field: the layout that it leads to, or why it is invalid; `fits` is None without a limit."""

    value: int
    layout: Parallelism | None
    problem: str = ""
    memory_bytes: int | None = None
    fits: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; of the layout only the searched fields."""
        layout = None if self.layout is None else values_of(self.layout, *SEARCHED)
        return {"value": self.value, "layout": layout, **values_of(self, "problem", "memory_bytes", "fits")}


def choices(
    layout: Parallelism, model: ModelConfig, bundle: Bundle, *, usable_bytes: int | None, simulated: bool
) -> Mapping[str, tuple[Choice, ...]]:
    """Every value of `CHOSEN` that divides the devices (micro_batch: the global batch).

    A changed tp, pp or cp gives to dp or takes from it, a changed dp from pp. Fields that no longer apply are dropped:
    sequence parallelism without tensor parallelism, a pipeline schedule without a pipeline. `usable_bytes` limits
    the memory of a device, with NCCL's buffers; with `simulated`, steps too long to be simulated are refused.

    Raises:
        UsageError: more devices or samples than a search may have.
    """
    SEARCH["gpus"].check(layout.world_size)
    OPTIONS["global_batch"].check(layout.samples_per_update)
    found = {
        field: tuple(_choices(field, layout, model, simulated)) for field in CHOSEN if field in _fields(model)
    }
    valid = [one.layout for several in found.values() for one in several if one.layout is not None]
    if not valid:
        return found
    layouts = Layouts(np.concatenate([Layouts.of(one).table for one in valid]), layout)
    buffers = sum(communicator_bytes(layouts).values()) * has_gpus(bundle)
    limits = np.full(len(layouts), np.inf if usable_bytes is None else usable_bytes) - buffers
    needed = zip(needed_bytes(bundle, model, layouts).tolist(), limits.tolist(), strict=True)
    return {
        field: tuple(one if one.layout is None else _with_memory(one, *next(needed)) for one in several)
        for field, several in found.items()
    }


def _fields(model: ModelConfig) -> tuple[str, ...]:
    return CHOSEN if model.experts else tuple(name for name in CHOSEN if name not in EXPERT_DEGREES)


def _with_memory(one: Choice, memory_bytes: float, limit_bytes: float) -> Choice:
    fits = None if limit_bytes == np.inf else memory_bytes <= limit_bytes
    return replace(one, memory_bytes=round(memory_bytes), fits=fits)


def _choices(field: str, layout: Parallelism, model: ModelConfig, simulated: bool) -> Iterator[Choice]:
    of = layout.samples_per_update if field == "micro_batch" else layout.world_size
    for value in divisors(of):
        try:
            changed = _changed(field, value, layout, model)
            changed.check(model)
            partition(model.layers, changed.pp, changed.virtual_stages)
            if simulated:
                check_simulated(changed.chunks, changed.micro_batches)
        except UsageError as error:
            yield Choice(value=value, layout=None, problem=str(error))
        else:
            yield Choice(value=value, layout=changed)


def _changed(field: str, value: int, layout: Parallelism, model: ModelConfig) -> Parallelism:
    if value == getattr(layout, field):
        return replace(layout, layer_counts=None)
    degrees = {name: getattr(layout, name) for name in ("pp", "tp", "dp", "cp")} | (
        {field: value} if field in _REST else {}
    )
    rest = _REST.get(field)
    if rest is not None:
        others = [name for name in degrees if name != rest]
        product = int(np.prod([degrees[name] for name in others]))
        if layout.world_size % product:
            divisor = f"a divisor of the {layout.world_size} devices"
            raise UsageError(field=field, subject=" · ".join(others), found=product, expected=divisor)
        degrees[rest] = layout.world_size // product
    micro_batch = value if field == "micro_batch" else layout.micro_batch
    together = degrees["dp"] * micro_batch
    if layout.samples_per_update % together:
        divisor = f"a divisor of the global batch ({layout.samples_per_update})"
        raise UsageError(field="dp", subject="dp · micro_batch", found=together, expected=divisor)
    several = degrees["tp"] > 1
    exists = degrees["pp"] >= SCHEDULE_KINDS[layout.schedule].least_pp
    return replace(
        layout,
        **degrees,
        ep=value if field == "ep" else layout.ep,
        expert_tp=value if field == "expert_tp" else layout.expert_tp,
        micro_batch=micro_batch,
        micro_batches=layout.samples_per_update // together,
        layer_counts=None,
        # Each device routes its own tokens, so tensor parallelism with experts needs sequence parallelism.
        sequence_parallel=several and (layout.sequence_parallel or bool(model.experts)),
        schedule=layout.schedule if exists else "1f1b",
        virtual_stages=layout.virtual_stages if exists else 1,
    )
