"""Numpy formulas as ONNX graphs: a `Value` takes part in numpy's arithmetic, and each operation becomes a node."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import helper, numpy_helper

_NODES = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.matmul: "MatMul",
    np.maximum: "Max",
    np.minimum: "Min",
    np.exp: "Exp",
    np.log: "Log",
    np.floor: "Floor",
    np.ceil: "Ceil",
}
_CONDITIONS = {np.equal: "Equal", np.greater: "Greater"}


class Graph:
    """Collects nodes and constants. A node that is asked for twice is made once."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._known: dict[object, str] = {}

    def node(self, kind: str, *inputs: Any, output: str = "", **attributes: Any) -> "Value":
        """The output of a node; inputs are values, arrays or numbers."""
        names = [given.name if isinstance(given, Value) else self._constant(given) for given in inputs]
        key = (kind, *names, *attributes.items(), output)
        if key not in self._known:
            self._known[key] = output or f"{kind.lower()}_{len(self.nodes)}"
            self.nodes.append(helper.make_node(kind, names, [self._known[key]], **attributes))
        return Value(self, self._known[key])

    def _constant(self, given: npt.ArrayLike) -> str:
        value = np.asarray(given)
        value = value.astype(np.int64 if value.dtype.kind == "i" and value.ndim else np.float32)
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._known:
            self._known[key] = f"constant_{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(value, self._known[key]))
        return self._known[key]


class Value(NDArrayOperatorsMixin):
    """A named value of a graph, float32 [rows, columns]; conditions are 1 where they hold, else 0."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.name = name

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> "Value":
        if ufunc in _CONDITIONS:
            return self.graph.node(
                "Cast", self.graph.node(_CONDITIONS[ufunc], *inputs), to=onnx.TensorProto.FLOAT
            )
        return self.graph.node(_NODES[ufunc], *inputs)

    def __getitem__(self, index: tuple[slice, list[int]]) -> "Value":
        _, columns = index
        return self.graph.node("Gather", self, np.array(columns), axis=1)
