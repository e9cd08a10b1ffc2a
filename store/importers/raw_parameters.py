"""Workload vectors from raw parameters (b, l, d, h, tp, …), as the layers of a step call operators."""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from itertools import chain
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import Operator
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.groups import Group
from kernelcast.runtime.step.layers.attention import attention
from kernelcast.runtime.step.layers.loss import embedding, loss
from kernelcast.runtime.step.layers.mlp import mlp
from kernelcast.runtime.step.layers.norm import norm
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Calls, Number, Ops, call, computing
from kernelcast.runtime.step.parameters import PartParameters
from kernelcast.runtime.step.sizes import Sizes, padded_vocabulary
from kernelcast.runtime.step.update import DataParallel, update_ops
from kernelcast.store.importers.tables import Malformed

SYMBOLS = (
    "b", "l", "d", "h", "h_kv", "f", "v", "tp", "dp", "layers", "parameters", "nodes", "gpus_per_node"
)  # fmt: skip
"""Raw parameters by the symbols of docs/method.md."""
RAW_VOCABULARY = "v_raw"
"""The tokenizer's own vocabulary, instead of the padded `v`."""

Values = Mapping[str, int]

# (dividend, divisor): must divide without remainder.
_DIVIDED = (("h", "tp"), ("h_kv", "tp"), ("f", "tp"), ("v", "tp"), ("d", "tp"), ("d", "h"))
# Any workload at which every parameter can be doubled.
_EXAMPLE = {
    "b": 2, "l": 4, "d": 64, "h": 8, "h_kv": 4, "f": 32, "v": 64, "tp": 1, "dp": 2, "layers": 2, "parameters": 32,
    "nodes": 2, "gpus_per_node": 2,
}  # fmt: skip


def workload_vector(row: Operator, role: str, given: Values) -> tuple[int, ...]:
    """Workload vector of an operator in a role at raw parameters, keys as in `SYMBOLS` (or `RAW_VOCABULARY`).

    By default tp is 1, h_kv is h, f is 4 d, and an optimizer's parameters follow from d, tp, layers and the vocabulary
    (Table III). Malformed where no step calls the operator in that role, a parameter is missing, or a division leaves a
    remainder.
    """
    needed, features = needed_symbols(row.name, role), ", ".join(row.features)
    if not needed:
        roles = ", ".join(filter(None, row.roles))
        raise Malformed(f"{row.name} needs its workload vector ({features}), or a role of {roles}")
    name = f"{row.name} ({role})" if role else row.name
    try:
        values = _with_defaults(row, role, given)
        missing = [symbol for symbol in SYMBOLS if symbol in needed and symbol not in values]
        if missing:
            # h_kv is h unless given.
            names = ", ".join(symbol for symbol in missing if symbol != "h_kv" or "h" not in missing)
            raise Malformed(f"{name} needs {names} (or its workload vector: {features})")
        for what, by_what in _DIVIDED:
            if {what, by_what} <= needed and values[what] % values[by_what]:
                raise Malformed(f"{what}={values[what]} is not divisible by {by_what}={values[by_what]}")
        return _shape(row.name, role, {symbol: values[symbol] for symbol in needed})
    except UsageError as error:
        raise Malformed(f"{name}: {error}") from error


@cache
def needed_symbols(name: str, role: str) -> frozenset[str]:
    """The raw parameters that an operator's workload vector depends on; empty if no step calls it in that role."""
    if _calls_with(name, role) is None:
        return frozenset()
    at_example = _shape(name, role, _EXAMPLE)
    return frozenset(
        symbol
        for symbol in SYMBOLS
        if _shape(name, role, {**_EXAMPLE, symbol: 2 * _EXAMPLE[symbol]}) != at_example
    )


def _shape(name: str, role: str, values: Values) -> tuple[int, ...]:
    calls_at = _calls_with(name, role)
    for one in calls_at(values) if calls_at else ():
        if (one.operator, one.role) == (name, role):
            return one.shape
    raise UsageError("no step calls it at these parameters")


@cache
def _calls_with(name: str, role: str) -> Callable[[Values], Calls] | None:
    """The part of a step that calls an operator in a role."""
    for calls_at in _PARTS:
        if any((one.operator, one.role) == (name, role) for one in calls_at(_EXAMPLE)):
            return calls_at
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class _PublishedSizes(Sizes):
    """Sizes of a model whose vocabulary is padded already, on the group of devices that a row names."""

    on: Group

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return ("published", self.on, *super()._key)

    @cached_property
    def group(self) -> Group:
        return self.on

    @cached_property
    def vocabulary(self) -> Number:
        return self.model.vocabulary_size // self.tp


def _sizes(values: Values, **architecture: Any) -> Sizes:
    """What one device sees; parameters that do not matter are as small as they can be."""
    tp = values.get("tp", 1)
    heads = values.get("h", tp)
    model = ModelConfig(
        name="imported",
        hidden_size=values.get("d", heads),
        sequence_length=values.get("l", 1),
        attention_heads=heads,
        kv_heads=values.get("h_kv", heads),
        mlp_size=values.get("f", tp),
        vocabulary_size=values.get("v", tp),
        layers=values.get("layers", 1),
        **architecture,
    )
    group = Group(nodes=values.get("nodes", 1), gpus_per_node=values.get("gpus_per_node", 1))
    layout = Parallelism.unchecked(tp=tp, micro_batch=values.get("b", 1))
    return _PublishedSizes(model=model, layout=layout, on=group)


def _of_layer(describe: Callable[[Sizes], Ops], **architecture: Any) -> Callable[[Values], Calls]:
    return lambda values: computing(describe(_sizes(values, **architecture)))


def _norm(s: Sizes) -> Ops:
    return (norm(s, "norm"),)


def _layer(values: Values) -> Calls:
    return tuple(one.call for one in transformer_layer(_sizes(values)) if one.call is not None)


def _sent(values: Values) -> Calls:
    sizes = _sizes(values)
    layout = sizes.group.nodes, sizes.group.gpus_per_node
    return (call("point_to_point", sizes.sent_entries, *layout, role="pipeline"),)


def _updated(values: Values) -> Calls:
    parameters, layers, group = values.get("parameters", 1), values.get("layers", 1), _sizes(values).group
    whole, sharded = (
        DataParallel(
            layout=Parallelism.unchecked(zero=zero),
            replicas=values.get("dp", 2),
            group=group,
            bucket_entries=parameters,
            element_bytes=2,
        )
        for zero in (1, 2)
    )
    updates = (update_ops([(parameters, whole)], role, layers) for role in _STAGES)
    calls = (one.call for one in chain.from_iterable(updates) if one.call is not None)
    return (*calls, *sharded.scatter(parameters))


_STAGES = {
    stage.optimizer_role: stage
    for stage in (
        StageKind(counts=(1,), first=first, last=last)
        for first, last in ((True, False), (False, False), (False, True))
    )
}
_PARTS: tuple[Callable[[Values], Calls], ...] = (
    _of_layer(_norm),
    _of_layer(_norm, norm="rms_norm"),
    _of_layer(embedding),
    _of_layer(mlp),
    _of_layer(mlp, activation="swiglu"),
    _of_layer(attention),
    _of_layer(attention, attention="unfused"),
    _of_layer(attention, attention="fused_softmax"),
    _of_layer(loss),
    _layer,
    _sent,
    _updated,
)


def _with_defaults(row: Operator, role: str, given: Values) -> dict[str, int]:
    values = {"tp": 1, **given}
    if "h" in values:
        values.setdefault("h_kv", values["h"])
    if "d" in values:
        values.setdefault("f", 4 * values["d"])
    if RAW_VOCABULARY in values and "v" not in values:
        values["v"] = int(padded_vocabulary(values[RAW_VOCABULARY], values["tp"]))
    stage = _STAGES.get(role) if row.per_update and "parameters" not in values else None
    needed = {"d", "layers", *(["v"] if stage and (stage.first or stage.last) else [])}
    if stage and needed <= values.keys():  # norms and biases as Table III prints them (eq. 6)
        values["parameters"] = int(
            PartParameters.of(_sizes(values))
            .of_stage(layers=(values["layers"],), first=stage.first, last=stage.last)
            .total
        )
    return values
