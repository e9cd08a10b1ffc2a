"""A search's question from plain values by field name, as options and JSON bodies give them."""

from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.defaults import (
    chosen_gpus_per_node,
    has_gpus,
    usual_gpu_memory_bytes,
    usual_gpus_per_node,
    usual_reserved_bytes,
)
from kernelcast.runtime.estimate.device_memory import memory_spread
from kernelcast.runtime.frameworks.software import Software, framework_named
from kernelcast.runtime.memory.stages import on_cpu
from kernelcast.runtime.request.field_types import Field, NumberSet
from kernelcast.runtime.request.fields import LAYOUT, SEARCH, SEARCHED, STACK
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import USUAL_SCHEDULES
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.space import Space

LIMITS: Mapping[str, Field] = {{"schedule": "schedules"}.get(name, name): LAYOUT[name] for name in SEARCHED}
"""Fields of a layout as a question names them, each with its allowed values."""

USUAL = {
    "tp": "within a node",
    "cp": "any with at least 4096 tokens of a sequence per device",
    "expert_tp": "1 or tp",
    "schedules": ",".join(USUAL_SCHEDULES),
    "virtual_stages": "2-8",
}
"""Allowed values by default; for other fields all."""

MOST_ITEMS = 64
"""Most items of a list."""


def few_values(field: Field) -> tuple[Any, ...]:
    """The values of a field that has few; its limit is a list, that of other fields a set of numbers and ranges."""
    return tuple(field.kind.values) if len(field.kind.values) <= MOST_ITEMS else ()


def read_question(
    values: Mapping[str, Any], *, model: ModelConfig, bundle: Bundle, fabric: FabricChoice | None = None
) -> Question:
    """The question of `values` over `fabric`; devices per node and memory default to the fabric's, else the bundle's.

    A limit is a list of values, one of them, or a text (`1,2,4-8`). `gpu_memory_bytes` of None leaves nothing out.

    Raises:
        UsageError: a field is missing or wrong.
    """
    for name in ("gpus", "global_batch"):
        if name not in values:
            raise UsageError(f"{name} is not given in the question", field=name)
    gpus = _listed("gpus", SEARCH["gpus"], values["gpus"])
    options = ("timeline", "rank_by", "top", "bucket_entries", "fit_probability")
    limits = {name: _limit(name, field, values[name]) for name, field in LIMITS.items() if name in values}
    software = None if "framework" not in values else framework_named(values["framework"])
    if software is not None:
        limits |= {
            name: _allowed(software, name, field.name, limits)
            for name, field in LIMITS.items()
            if field.name in software.layouts
        }
    return Question(
        space=Space(
            model=model,
            gpus=gpus,
            global_batch=values["global_batch"],
            gpus_per_node=values["gpus_per_node"]
            if "gpus_per_node" in values
            else chosen_gpus_per_node(fabric) or usual_gpus_per_node(bundle) or max(gpus),
            **limits,
            refused=() if software is None else software.refused,
            common={name: values[name] for name in STACK if name in values},
        ),
        gpu_memory_bytes=values["gpu_memory_bytes"]
        if "gpu_memory_bytes" in values
        else usual_gpu_memory_bytes(bundle),
        reserved_memory_bytes=values.get("reserved_memory_bytes", usual_reserved_bytes(bundle)),
        spread=None if on_cpu(bundle.manifest.compute) else memory_spread(model.experts > 0),
        has_nccl=has_gpus(bundle),
        fabric=fabric,
        **{name: values[name] for name in options if name in values},
    )


def _allowed(software: Software, name: str, field: str, limits: Mapping[str, Any]) -> Any:
    """What both a limit and a framework allow."""
    known: tuple[Any, ...] = software.layouts[field]
    allowed = tuple(one for one in known if name not in limits or one in limits[name])
    if not allowed:
        words = " or ".join(str(one).lower() for one in known)
        raise UsageError(field=field, found=str(limits[name]), expected=f"{words} with {software.title}")
    return allowed


def _limit(name: str, field: Field, value: object) -> Any:
    if few_values(field):
        return _listed(name, field, value)
    if isinstance(value, str):
        numbers = NumberSet.parse(value, name=name)
        if not all(field.kind.accepts(low) for low, _ in numbers.ranges):
            expected = f"numbers and ranges that begin at {field.kind.expected}"
            raise UsageError(field=name, found=value, expected=expected)
        return numbers
    return NumberSet(tuple((number, number) for number in _listed(name, field, value)))


def _listed(name: str, field: Field, value: object) -> tuple[Any, ...]:
    """The different items of a list, of one value, or of a text with commas."""
    parts: Any = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    parts = parts if isinstance(parts, list | tuple) else [parts]
    if not 0 < len(parts) <= MOST_ITEMS:
        raise UsageError(field=name, found=value, expected=f"1 to {MOST_ITEMS} values")
    items = [field.kind.read(part) if isinstance(value, str) else part for part in parts]
    for part, item in zip(parts, items, strict=True):
        if not field.kind.accepts(item):
            raise UsageError(field=name, found=part, expected=field.kind.expected)
    if len(set(items)) < len(items):
        raise UsageError(field=name, found=tuple(items), expected="one or more different values")
    return tuple(items)
