"""The workloads of a plan's named models, in the layouts of its ranges."""

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import product
from typing import get_args

from kernelcast.collector.plans.plan_ranges import Ranges
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import OPERATORS, Vector
from kernelcast.runtime.request.fields import ContextExchange
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import StageKind, kinds_of
from kernelcast.runtime.step.groups import Group
from kernelcast.runtime.step.layers.loss import embedding, loss
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Call, Calls, computing
from kernelcast.runtime.step.parameters import PartParameters
from kernelcast.runtime.step.sizes import Sizes
from kernelcast.runtime.step.update import DataParallel, update_ops

Column = tuple[str, str]
Workloads = Mapping[Column, tuple[Vector, ...]]

_DEGREES = ("tensor_parallel", "context_parallel", "expert_parallel")
_REMEMBERED = 1 << 12


def model_workloads(models: tuple[ModelConfig, ...], picked: Mapping[str, float]) -> Workloads:
    """Workloads of every operator and role that the picked model calls; empty where the layout does not fit it."""
    degrees = tuple(int(picked.get(name, 1)) for name in _DEGREES)
    model = models[int(picked["model"])]
    return _workloads(
        model, int(picked["sequence_length"]), degrees, int(picked["micro_batch"]), int(picked["layers"])
    )


@cache
def model_columns(models: tuple[ModelConfig, ...], ranges: Ranges) -> tuple[Column, ...]:
    """Every operator and role that one of a plan's models calls, in the order of the table of operators."""
    axes = {"model": tuple(range(len(models)))} | ranges.axes()
    always = {name: axes[name][0] for name in ("micro_batch", "layers")}
    ways = {name: axes.get(name, (1,)) for name in ("model", "sequence_length", *_DEGREES)}
    found = {
        column
        for values in product(*ways.values())
        for column in model_workloads(models, always | dict(zip(ways, values, strict=True)))
    }
    return tuple(
        (name, role) for name, row in OPERATORS.items() for role in row.roles if (name, role) in found
    )


@lru_cache(maxsize=_REMEMBERED)
def _workloads(
    model: ModelConfig, length: int, degrees: tuple[int, ...], micro_batch: int, layers: int
) -> Workloads:
    found: dict[Column, dict[Vector, None]] = {}
    for sizes in _sizes(model, length, degrees, micro_batch):
        for one in (*_passes(sizes), *_updates(sizes, min(layers, model.layers))):
            if one.count and not OPERATORS[one.operator].is_collective:
                found.setdefault((one.operator, one.role), {})[one.shape] = None
    return {column: tuple(vectors) for column, vectors in found.items()}


def _sizes(model: ModelConfig, length: int, degrees: tuple[int, ...], micro_batch: int) -> Iterator[Sizes]:
    tp, cp, ep = degrees
    if ep > 1 and not model.experts:
        return
    for exchange in get_args(ContextExchange)[: None if cp > 1 else 1]:
        try:
            other = model.with_sequence_length(length)
            layout = Parallelism(
                pp=1, tp=tp, dp=ep, cp=cp, ep=ep, micro_batch=micro_batch, micro_batches=1,
                sequence_parallel=tp > 1, context_exchange=exchange,
            )  # fmt: skip
            layout.check(other)
        except UsageError:
            continue  # sizes that do not divide
        yield Sizes(model=other, layout=layout)


def _passes(sizes: Sizes) -> Calls:
    layers = (transformer_layer(sizes.of_kind(kind)) for kind in kinds_of(sizes.model).distinct)
    return computing(one for ops in (embedding(sizes), *layers, loss(sizes)) for one in ops)


def update_calls(parts: PartParameters, stage: StageKind) -> Calls:
    """Operators that a stage runs once per update on one device, without ZeRO."""
    held = int(parts.of_stage(layers=stage.counts, first=stage.first, last=stage.last).total)
    alone = DataParallel(
        layout=Parallelism.unchecked(zero=0), replicas=1, group=Group(), bucket_entries=1, element_bytes=2
    )
    return computing(update_ops([(held, alone)], stage.optimizer_role, stage.layers))


def _updates(sizes: Sizes, layers: int) -> Iterator[Call]:
    """Updates of a first, a middle and a last stage of `layers` layers, and of a single stage."""
    kinds, every = kinds_of(sizes.model), sizes.model.layers
    parts = PartParameters.of(sizes)
    for start, first, last in (
        (0, True, False),
        ((every - layers) // 2, False, False),
        (every - layers, False, True),
        *([(0, True, True)] if layers == every else []),
    ):
        counts = kinds.counts(start, start + layers)
        yield from update_calls(parts, StageKind(counts=counts, first=first, last=last))
