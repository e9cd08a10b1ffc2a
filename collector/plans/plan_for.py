"""A plan for given models in given layouts: `collect plan --for`."""

import re
from collections.abc import Sequence

from kernelcast.collector.plans.plan_ranges import Messages, Plan, Ranges
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.models import load_model

_RANGES = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel"}
_DEGREE = re.compile(r"(tp|cp|ep|pp)([1-9]\d{0,5})")
_MICRO_BATCHES = (1, 2, 4)
_QUARTERS = (1, 2, 3, 4)
"""Quarters of a model's sequence length that are planned: one model in one layout then has enough distinct numbers of
tokens for a regressor.
"""
_LAYERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
_SMALLEST_BYTES, _LARGEST_BYTES = 4 << 10, 1 << 30
_SHAPES, _SEED = 26, 18


def plan_for(names: Sequence[str], layouts: str = "", *, sequence_length: int | None = None) -> Plan:
    """The plan for models by name or file (see `load_model`) and `layouts`, degrees such as `tp2,tp4,cp2,ep8,pp4`.

    Degrees of 1 are always included. `sequence_length` replaces the models' own. UsageError where a text is no degree,
    and as `load_model`.
    """
    models = tuple(load_model(name, sequence_length=sequence_length) for name in names)
    degrees = _degrees(layouts)
    lengths = {max(1, model.sequence_length * share // 4) for model in models for share in _QUARTERS}
    deepest = max(model.layers for model in models)
    layers = {-(-model.layers // pp) for model in models for pp in degrees["pp"]}
    layers |= {count for count in _LAYERS if count <= deepest}
    ranges = Ranges(
        micro_batch=_MICRO_BATCHES,
        sequence_length=tuple(sorted(lengths)),
        layers=tuple(sorted(layers)),
        **{name: degrees[short] for short, name in _RANGES.items()},
    )
    return Plan(
        name="for " + ", ".join(model.name for model in models),
        shapes_per_operator=_SHAPES,
        seed=_SEED,
        models=models,
        ranges=ranges,
        messages=Messages(smallest_bytes=_SMALLEST_BYTES, largest_bytes=_LARGEST_BYTES),
    )


def _degrees(layouts: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {name: {1} for name in ("tp", "cp", "ep", "pp")}
    for text in filter(None, (part.strip() for part in layouts.split(","))):
        match = _DEGREE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--layouts: {shown(text)} is no degree, expected some such as tp4, cp2, ep8 or pp4"
            )
        found[match[1]].add(int(match[2]))
    return {name: tuple(sorted(values)) for name, values in found.items()}


def plan_text(plan: Plan, names: Sequence[str]) -> str:
    """The plan as a file for `--plan FILE`; `names` are the models' names given to `plan_for`."""
    ranges = "\n".join(f"{name} = {list(values)}" for name, values in plan.ranges.axes().items())
    names = ", ".join(f"'{name}'" if '"' in name or "\\" in name else f'"{name}"' for name in names)
    assert plan.messages is not None
    return f"""\
# Operators that training these models calls, in these layouts (kernelcast collect plan --for; docs/plans.md).
shapes_per_operator = {plan.shapes_per_operator}
seed = {plan.seed}
models = [{names}]

[ranges]
{ranges}

[messages]
smallest_bytes = {plan.messages.smallest_bytes}
largest_bytes = {plan.messages.largest_bytes}
"""
