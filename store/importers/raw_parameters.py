"""Raw parameters (b, l, d, h, mp, …) into workload vectors, through the operator table.

Which parameters an operator needs is asked of the table itself, so that the two cannot drift apart.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import Operator, OperatorClass, Shape, operator
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.parameters import padded_vocabulary, stage_parameters
from kernelcast.store.importers.problems import Malformed

# docs/method.md, Symbols symbols, and the fields of a Shape.
SYMBOLS: Mapping[str, str] = MappingProxyType(
    {
        "b": "micro_batch",
        "l": "sequence_length",
        "d": "hidden_size",
        "h": "attention_heads",
        "h_kv": "kv_heads",
        "f": "mlp_size",
        "v": "vocabulary_size",
        "mp": "tensor_parallel",
        "dp": "data_parallel",
        "encoders": "stage_encoders",
        "parameters": "stage_parameters",
        "nodes": "nodes",
        "gpus_per_node": "gpus_per_node",
    }
)
RAW_VOCABULARY = "v_raw"
"""The tokenizer's own vocabulary, instead of the padded `v`."""

_SYMBOL_OF = {name: symbol for symbol, name in SYMBOLS.items()}
# (what, by what): divided on one device, so it has to come out even.
_DIVIDED = (("h", "mp"), ("h_kv", "mp"), ("f", "mp"), ("v", "mp"), ("d", "mp"), ("d", "h"))


def workload_vector(row: Operator, given: Mapping[str, int]) -> tuple[int, ...]:
    """Workload vector of an operator at raw parameters, keys as in `SYMBOLS` (or `RAW_VOCABULARY`).

    Not given, mp is 1, h_kv is h, f is 4 d, and an optimizer's parameters are those of Table III for d,
    mp, encoders and the vocabulary.

    Raises:
        Malformed: a parameter that the operator needs is missing, or a division does not come out even.
    """
    needed = needed_symbols(row.name)
    values = _with_defaults(row, given, needed)
    missing = [symbol for symbol in SYMBOLS if symbol in needed and symbol not in values]
    if missing:
        features = ", ".join(row.features)
        raise Malformed(f"{row.name} needs {', '.join(missing)} (or its workload vector: {features})")
    for what, by_what in _DIVIDED:
        if {what, by_what} <= needed and values[what] % values[by_what]:
            raise Malformed(f"{what}={values[what]} is not divisible by {by_what}={values[by_what]}")
    return row.workload(Shape(**{SYMBOLS[symbol]: values[symbol] for symbol in needed}))


def optimizer_parameters(row: Operator, *, mp: int, d: int, encoders: int, vocabulary: int) -> int:
    """Parameters on one device of the stage that an `optimizer_*_stage` runs over (Table III, eq. 6).

    `vocabulary` is the tokenizer's own; eq. 2 pads it. Norms and biases are counted as Table III prints them.
    """
    try:
        model = ModelConfig(
            name="stage",
            hidden_size=d,
            sequence_length=1,
            attention_heads=1,
            encoders=encoders,
            vocabulary_size=vocabulary,
        )
    except UsageError as error:
        raise Malformed(str(error)) from error
    first, last = row.name == "optimizer_first_stage", row.name == "optimizer_last_stage"
    return stage_parameters(model, mp, encoders=encoders, first=first, last=last)


@cache
def needed_symbols(name: str) -> frozenset[str]:
    """Which raw parameters the workload vector of an operator depends on."""
    asked: set[str] = set()
    operator(name).workload(_Listening(asked))
    # Files give d and h; a head size of its own has no symbol and stays 0.
    return frozenset(_SYMBOL_OF[field_name] for field_name in asked if field_name in _SYMBOL_OF)


_SHAPE_FIELDS = frozenset(f.name for f in fields(Shape))


class _Listening(Shape):
    """A shape of ones that notes which of its fields are read."""

    def __init__(self, asked: set[str]) -> None:
        super().__init__()
        object.__setattr__(self, "_asked", asked)

    def __getattribute__(self, name: str) -> object:
        if name in _SHAPE_FIELDS:
            object.__getattribute__(self, "_asked").add(name)
        return object.__getattribute__(self, name)


def _with_defaults(row: Operator, given: Mapping[str, int], needed: frozenset[str]) -> dict[str, int]:
    values = {"mp": 1, **given}
    if "h" in values:
        values.setdefault("h_kv", values["h"])
    if "d" in values:
        values.setdefault("f", 4 * values["d"])
    if RAW_VOCABULARY in values and "v" not in values:
        values["v"] = padded_vocabulary(values[RAW_VOCABULARY], values["mp"])
    if row.operator_class is OperatorClass.OPTIMIZER and "parameters" not in values:
        size_only = row.name == "optimizer_middle_stage"
        if {"d", "encoders"} <= values.keys() and (size_only or RAW_VOCABULARY in values):
            values["parameters"] = optimizer_parameters(
                row,
                mp=values["mp"],
                d=values["d"],
                encoders=values["encoders"],
                vocabulary=values.get(RAW_VOCABULARY, 1),
            )
    return {symbol: value for symbol, value in values.items() if symbol in needed}
