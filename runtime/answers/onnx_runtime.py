"""ONNX Runtime, imported when it is first needed and kept from reporting to its maker; and graphs run by numpy instead.

A session takes 10 ms to open. numpy runs a checked graph bit for bit as ONNX Runtime does: sums, products and
comparisons are exact in both. What numpy computes otherwise (exponential, logarithm, products of matrices) is asked of
ONNX Runtime, by one session with these three operators alone.
"""

import os
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.bundle.graph import Graph


def onnx_runtime() -> Any:
    """The module `onnxruntime`; importing it takes a quarter of a second.

    Since version 1.29 it sends telemetry from Linux too, and leaves an identifier in the user's home
    (microsoft/onnxruntime pull request 27379). It is told not to before it is imported, which is when it decides; a
    user who sets the variable decides.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from kernelcast.runtime.terminations import interrupts_held

    with (
        interrupts_held()
    ):  # its compiled module drops exceptions that are raised while it initialises itself
        import onnxruntime

    return onnxruntime


def open_session(model: bytes) -> Any:
    """A session of a model, on one thread; any error is ONNX Runtime's."""
    onnxruntime = onnx_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


_EXACT = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Equal": np.equal,
    "Greater": np.greater,
    "Floor": np.floor,
    "Ceil": np.ceil,
}
_OF_ONNX_RUNTIME = {"Exp": ("exponent",), "Log": ("number",), "MatMul": ("left", "right")}
_LANES = 16
"""Columns of a product: with one, as features times factors have, ONNX Runtime adds up in another order."""
_Floats = NDArray[np.float32]


def run_graph(graph: Graph, rows: _Floats) -> dict[bytes, _Floats]:
    """Every value of a graph for some rows, a multiple of 4 of them."""
    values: dict[bytes, Any] = {graph.input: rows, **graph.constants}
    with np.errstate(all="ignore"):  # what is not finite is refused later
        for kind, names, output, constant in graph.nodes:
            inputs = [values[name] for name in names]
            if kind in _EXACT:
                values[output] = reduce(_EXACT[kind], inputs) if len(inputs) > 1 else _EXACT[kind](*inputs)
            elif kind in _OF_ONNX_RUNTIME:
                values[output] = _asked(kind, *inputs)
            elif kind == "Concat":
                values[output] = np.concatenate(inputs, axis=1)
            elif kind == "Gather":
                values[output] = inputs[0][:, constant]
            elif kind == "TreeEnsembleRegressor":
                values[output] = constant(inputs[0])
            else:  # Cast, Identity
                values[output] = inputs[0].astype(np.float32, copy=False)
    return values


def _asked(kind: str, *inputs: _Floats) -> _Floats:
    """What ONNX Runtime computes of one operator."""
    if kind == "MatMul":
        width = inputs[1].shape[1]
        inputs = inputs[0], np.tile(inputs[1], -(-_LANES // width))
    given = dict.fromkeys(("exponent", "number", "left", "right"), np.ones((1, 1), np.float32))
    [found] = _session().run([kind], given | dict(zip(_OF_ONNX_RUNTIME[kind], inputs, strict=True)))
    answer: _Floats = found[:, :width] if kind == "MatMul" else found
    return answer


@cache
def _session() -> Any:
    """A session of a graph with a node per operator, named like it. Field numbers as in bundle/graph.py."""
    floats = _field(2, _field(1, bytes([1 << 3, 1])))  # the type of a value: a tensor of float32
    graph = _field(2, b"operators")
    for kind, names in _OF_ONNX_RUNTIME.items():
        inputs = b"".join(_field(1, name.encode()) for name in names)
        graph += _field(1, inputs + _field(2, kind.encode()) + _field(4, kind.encode()))
        graph += b"".join(_field(11, _field(1, name.encode()) + floats) for name in names)
        graph += _field(12, _field(1, kind.encode()) + floats)
    return open_session(
        bytes([1 << 3, 8]) + _field(7, graph) + _field(8, _field(1, b"") + bytes([2 << 3, 17]))
    )


def _field(number: int, content: bytes) -> bytes:
    """A field of protocol buffers that holds a text or a message of less than 16,384 bytes."""
    size = len(content)
    return bytes([number << 3 | 2, *([size] if size < 0x80 else [size & 0x7F | 0x80, size >> 7])]) + content
