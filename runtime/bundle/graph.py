"""What an ONNX graph of a bundle may hold: an allow-list, checked before ONNX Runtime sees the graph.

A graph is a function of rows: every value is [rows, columns], or a constant. Allowed are the operators that `train`
writes, each with a width that follows from the constants: time and memory are bounded by the number of rows, nothing
loops and nothing is random. Trees are checked to be trees of a bounded depth.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.bundle.trees import checked_trees, read_message
from kernelcast.runtime.errors import DataError

MAX_GRAPH_BYTES = 1 << 24
MAX_NODES = 2_000
MAX_COLUMNS = 4_096
"""Columns of all values of a graph together, per evaluated row."""
MAX_CONSTANT_ELEMENTS = 1 << 16
MAX_METADATA_BYTES = 1 << 20
IR_VERSIONS, OPSETS, ML_OPSETS = range(3, 11), range(13, 22), range(1, 4)

_ATTRIBUTE_TYPES = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
_FLOAT32, _INT64 = 1, 7
_MAX_TYPE_BYTES = 1_024


class _Value(NamedTuple):
    """A value's shape: `rows` is None for one row per workload. A constant of one dimension is one row."""

    rows: int | None
    columns: int
    dimensions: int = 2


_Attributes = Mapping[str, Any]


@cache
def _messages() -> Mapping[str, Mapping[int, tuple[str, str]]]:
    """Names and kinds of the fields of messages, by their numbers."""
    table = tomllib.loads(Path(__file__).with_name("onnx.toml").read_text(encoding="utf-8"))
    return {
        message: {number: (name, kind) for name, (number, kind) in fields.items()}
        for message, fields in table.items()
    }


class Node(NamedTuple):
    """An operator, the values that it reads and the one that it writes; of a Gather its index, of trees the trees."""

    kind: str
    inputs: list[bytes]
    output: bytes
    constant: Any


class Graph(NamedTuple):
    """A checked graph: its input, its constants, float32, and its nodes in an order that computes them."""

    input: bytes
    outputs: tuple[bytes, ...]
    constants: Mapping[bytes, NDArray[np.float32]]
    nodes: Sequence[Node]


def check_graph(model: bytes, columns: int) -> Graph:
    """The graph of a model of `columns` features, which ONNX Runtime may be given.

    Raises:
        DataError: it is damaged, too large, or holds anything that is not allowed; says what.
    """
    if len(model) > MAX_GRAPH_BYTES:
        raise DataError(f"has {len(model)} bytes, expected at most {MAX_GRAPH_BYTES}")
    found = read_message(model, _messages()["model"], "the model")
    _check_versions(found)
    if sum(map(len, found.get("metadata_props", []))) > MAX_METADATA_BYTES:
        raise DataError(f"has metadata of more than {MAX_METADATA_BYTES} bytes")
    graph = read_message(found.get("graph", b""), _messages()["graph"], "the graph")
    nodes, constants = graph.get("node", []), graph.get("initializer", [])
    if len(nodes) > MAX_NODES or len(constants) > MAX_NODES:
        raise DataError(
            f"has {len(nodes)} nodes and {len(constants)} constants, expected {MAX_NODES} at most"
        )
    inputs = [read_message(one, _messages()["value"], "an input") for one in graph.get("input", [])]
    outputs = [read_message(one, _messages()["value"], "an output") for one in graph.get("output", [])]
    if len(inputs) != 1 or len(outputs) > MAX_NODES:
        raise DataError(f"has {len(inputs)} inputs and {len(outputs)} outputs, expected one input")
    if any(len(one.get("type", b"")) > _MAX_TYPE_BYTES for one in (*inputs, *outputs)):
        raise DataError(f"has an input or output whose type takes more than {_MAX_TYPE_BYTES} bytes")

    values: dict[bytes, _Value] = {inputs[0].get("name", b""): _Value(None, columns)}
    indices: dict[bytes, Any] = {}
    numbers: dict[bytes, NDArray[np.float32]] = {}
    for constant in constants:
        name, shape, array = _constant(constant)
        if name in values or name in indices:
            raise DataError(f"defines {_text(name)} twice")
        if array.dtype == np.float32:
            values[name], numbers[name] = shape, array
        else:
            indices[name] = array
    computed = []
    for message in nodes:
        node, shape = _node(read_message(message, _messages()["node"], "a node"), values, indices)
        if node.output in values or node.output in indices:
            raise DataError(f"defines {_text(node.output)} twice")
        values[node.output] = shape
        computed.append(node)
    _check_sizes(values.values())
    return Graph(
        inputs[0].get("name", b""), tuple(one.get("name", b"") for one in outputs), numbers, computed
    )


def _check_versions(found: _Attributes) -> None:
    if found.get("ir_version") not in IR_VERSIONS:
        raise DataError(f"has IR version {found.get('ir_version')}, expected {_span(IR_VERSIONS)}")
    opsets = [read_message(one, _messages()["opset"], "an opset") for one in found.get("opset_import", [])]
    versions = {one.get("domain", b""): one.get("version") for one in opsets}
    if len(versions) < len(opsets):
        raise DataError("has an opset twice")
    for domain, version in versions.items():
        allowed = {b"": OPSETS, b"ai.onnx.ml": ML_OPSETS}.get(domain)
        if allowed is None:
            raise DataError(f"has operators of domain {_text(domain)}, expected ai.onnx and ai.onnx.ml alone")
        if version not in allowed:
            raise DataError(f"has opset {version} of {_text(domain)}, expected {_span(allowed)}")


def _check_sizes(values: Any) -> None:
    per_row = sum(value.columns for value in values if value.rows is None)
    constant = sum(value.rows * value.columns for value in values if value.rows is not None)
    if per_row > MAX_COLUMNS:
        raise DataError(f"computes {per_row} columns, expected at most {MAX_COLUMNS}")
    if constant > MAX_CONSTANT_ELEMENTS:
        raise DataError(f"has {constant} constant numbers, expected at most {MAX_CONSTANT_ELEMENTS}")


def _constant(message: bytes) -> tuple[bytes, _Value, Any]:
    """Name, shape and values of a constant."""
    tensor = read_message(message, _messages()["tensor"], "a constant")
    name, dims = tensor.get("name", b""), tensor.get("dims", np.empty(0, np.int64)).tolist()
    kind, where = tensor.get("data_type"), f"constant {_text(tensor.get('name', b''))}"
    if kind not in (_FLOAT32, _INT64) or (kind == _INT64 and "raw_data" not in tensor):
        raise DataError(f"{where} is of type {kind}, expected float32, or int64 with raw data")
    if len(dims) > 2 or any(not 1 <= size <= MAX_CONSTANT_ELEMENTS for size in dims):
        raise DataError(f"{where} has shape {str(dims)[:80]}, expected at most two dimensions")
    if "raw_data" in tensor and "float_data" in tensor:
        raise DataError(f"{where} has its numbers twice")
    rows, columns = [1, 1, *dims][-2:]
    data = tensor.get("raw_data", tensor.get("float_data", b""))
    if len(data) != rows * columns * (4 if kind == _FLOAT32 else 8):
        raise DataError(f"{where} has {len(data)} bytes of numbers, expected the size of shape {dims}")
    if kind == _FLOAT32:
        numbers = np.frombuffer(data, "<f4").reshape(dims)
        if not np.isfinite(numbers).all():
            raise DataError(f"{where} has numbers that are not finite")
        return name, _Value(rows, columns, len(dims)), numbers
    if len(dims) != 1:
        raise DataError(f"{where} has shape {dims}, expected one dimension of an index")
    return name, _Value(1, columns), np.frombuffer(data, "<i8")


def _node(
    node: _Attributes, values: Mapping[bytes, _Value], indices: Mapping[bytes, Any]
) -> tuple[Node, _Value]:
    kind = (
        node.get("domain", b"").decode("ascii", "replace"),
        node.get("op_type", b"").decode("ascii", "replace"),
    )
    allowed = _OPERATORS.get(kind)
    if allowed is None:
        name = ".".join(part for part in kind if part)
        raise DataError(f"has the operator {name[:80]!r}, which no bundle needs")
    attributes = _attributes(node.get("attribute", []), kind[1])
    outputs, names = node.get("output", []), list(node.get("input", []))
    if len(outputs) != 1 or not names:
        raise DataError(f"{kind[1]} has {len(names)} inputs and {len(outputs)} outputs")
    if kind[1] == "Gather" and len(names) == 2 and names[1] in indices:
        attributes["index"] = indices[names.pop()]
    for name in names:
        if name not in values:
            raise DataError(f"{kind[1]} reads {_text(name)}, which is not computed before it")
    inputs, constant = [values[name] for name in names], attributes.get("index")
    if kind[1] == _TREES:
        if len(inputs) != 1 or inputs[0].dimensions != 2:
            raise _mismatch(_TREES, inputs)
        constant = checked_trees(attributes, inputs[0].columns)
    return Node(kind[1], names, outputs[0], constant), allowed(kind[1], inputs, attributes)


def _attributes(messages: Sequence[bytes], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for message in messages:
        attribute = read_message(message, _messages()["attribute"], f"an attribute of {kind}")
        name = attribute.pop("name", b"").decode("ascii", "replace")
        field = _ATTRIBUTE_TYPES.get(attribute.pop("type", 0), "")
        if name in found or list(attribute) != [field]:
            raise DataError(f"{kind} has attribute {name[:80]!r} twice, or with more than one value")
        found[name] = attribute[field]
    return found


def _expect(kind: str, attributes: _Attributes, *expected: tuple[str, object]) -> None:
    # Lists are refused, not compared: only the tree operator has them.
    if any(isinstance(value, np.ndarray) for value in attributes.values()) or attributes != dict(expected):
        names = ", ".join(f"{name} {value}" for name, value in expected) or "none"
        raise DataError(f"{kind} has attributes {str(attributes)[:80]}, expected {names}")


def _elementwise(kind: str, inputs: Sequence[_Value], attributes: _Attributes) -> _Value:
    _expect(kind, attributes, *([("to", _FLOAT32)] if kind == "Cast" else []))
    rows, columns, dimensions = inputs[0]
    for one in inputs[1:]:
        if not _broadcast(rows, one.rows) or not _broadcast(columns, one.columns):
            raise _mismatch(kind, inputs)
        rows = one.rows if rows == 1 else rows
        columns, dimensions = max(columns, one.columns), max(dimensions, one.dimensions)
    return _Value(rows, columns, dimensions)


def _broadcast(one: int | None, other: int | None) -> bool:
    return one == other or 1 in (one, other)


def _matmul(kind: str, inputs: Sequence[_Value], attributes: _Attributes) -> _Value:
    _expect(kind, attributes)
    if [one.dimensions for one in inputs] != [2, 2] or inputs[0].columns != inputs[1].rows:
        raise _mismatch(kind, inputs)
    return _Value(inputs[0].rows, inputs[1].columns)


def _concat(kind: str, inputs: Sequence[_Value], attributes: _Attributes) -> _Value:
    _expect(kind, attributes, ("axis", 1))
    if any(one.dimensions != 2 or one.rows != inputs[0].rows for one in inputs):
        raise _mismatch(kind, inputs)
    return _Value(inputs[0].rows, sum(one.columns for one in inputs))


def _gather(kind: str, inputs: Sequence[_Value], attributes: _Attributes) -> _Value:
    given = dict(attributes)
    index = given.pop("index", None)
    _expect(kind, given, ("axis", 1))
    if index is None or len(inputs) != 1 or inputs[0].dimensions != 2:
        raise DataError(f"{kind} has no constant index")
    columns = inputs[0].columns
    if index.min() < -columns or index.max() >= columns:
        raise DataError(f"{kind} takes columns {index.min()} to {index.max()} of {columns}")
    return _Value(inputs[0].rows, len(index))


def _trees(kind: str, inputs: Sequence[_Value], attributes: _Attributes) -> _Value:
    return _Value(inputs[0].rows, 1)


def _mismatch(kind: str, inputs: Sequence[_Value]) -> DataError:
    shapes = ", ".join(f"[{'rows' if one.rows is None else one.rows}, {one.columns}]" for one in inputs[:8])
    return DataError(f"{kind} has inputs of shapes {shapes}, which do not fit")


_TREES = "TreeEnsembleRegressor"
_ONE = ("Exp", "Log", "Floor", "Ceil", "Cast", "Identity")
_SEVERAL = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater")
_OPERATORS: Mapping[tuple[str, str], Callable[[str, Sequence[_Value], _Attributes], _Value]] = {
    **{("", kind): _elementwise for kind in (*_ONE, *_SEVERAL)},
    ("", "MatMul"): _matmul,
    ("", "Concat"): _concat,
    ("", "Gather"): _gather,
    ("ai.onnx.ml", _TREES): _trees,
}


def _text(name: bytes) -> str:
    return repr(name.decode("utf-8", "replace")[:80])


def _span(allowed: range) -> str:
    return f"{allowed.start} to {allowed.stop - 1}"
