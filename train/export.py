"""A regressor as one ONNX graph: workload vector in, time and interval in µs out; features, trees and exp are inside.

Opset 15 (the newest that both converters write) with the tree operators of `ai.onnx.ml` opset 3. Input `workload`
float32 [rows, features]; outputs `time_us`, `low_us` and `high_us`, float32 [rows, 1] each. docs/bundle.md shows how
other languages use one. Formulas become nodes: a `Value` takes part in numpy's arithmetic.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import TensorProto, helper, numpy_helper
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as XgboostFloatTensorType
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from xgboost import XGBRegressor

from kernelcast.runtime.answers.onnx_runtime import onnx_runtime
from kernelcast.runtime.answers.predictor import INPUT_NAME, OUTPUT_NAMES
from kernelcast.runtime.bundle.graph import check_graph
from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.train.dataset import Array, Table
from kernelcast.train.formula import input_columns
from kernelcast.train.intervals import log_half_width, log_half_widths
from kernelcast.train.regressor import Regressor

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
    """Collects nodes and constants. Equal nodes are made once."""

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


OPSET = 15
ML_OPSET = 3
PARITY_TOLERANCE = 1e-4
_IR_VERSION = 8
_DEFAULTED = ("nodes_hitrates", "nodes_missing_value_tracks_true")
_RANDOM_ROWS = 256
_BEYOND = 4.0


def to_onnx(regressor: Regressor, interval: Interval, properties: Mapping[str, str]) -> bytes:
    """The regressor as ONNX bytes, `properties` as its metadata_props; same input, same bytes."""
    op = OPERATORS[regressor.operator]
    features = len(op.features)
    graph = Graph()
    # The formulas are typed for arrays; a value takes the place of one.
    workloads = cast(Any, Value(graph, INPUT_NAME))
    log_us = regressor.log_us(workloads, _trees(graph, regressor, workloads, op))
    time_us, low_us, high_us = OUTPUT_NAMES
    time = graph.node("Exp", log_us, output=time_us)
    factor = np.exp(log_half_width(interval, workloads, features))
    graph.node("Div", time, factor, output=low_us)
    graph.node("Mul", time, factor, output=high_us)
    # ONNX Runtime warns of constants that no node reads.
    read = {name for node in graph.nodes for name in node.input}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            regressor.operator,
            [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, ["rows", features])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in OUTPUT_NAMES],
            [constant for constant in graph.constants if constant.name in read],
        ),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        ir_version=_IR_VERSION,
        producer_name="kernelcast",
    )
    helper.set_model_props(model, dict(sorted(properties.items())))
    onnx.checker.check_model(model, full_check=True)
    encoded: bytes = model.SerializeToString(deterministic=True)
    check_graph(encoded, features)  # never write a graph that readers of bundles refuse
    return encoded


def _trees(graph: Graph, regressor: Regressor, workloads: Any, op: Operator) -> Value:
    """Output of the trees, [rows, 1]."""
    columns = list(input_columns(workloads, op, regressor.candidate.inputs))
    converted = _convert(regressor, len(columns))
    kinds = [node.op_type for node in converted.graph.node]
    if kinds != ["TreeEnsembleRegressor"]:
        raise DataError(
            f"{regressor.operator}: trees converted to {', '.join(kinds)}, expected one TreeEnsembleRegressor"
        )
    (trees,) = converted.graph.node
    trees.input[0], trees.output[0] = graph.node("Concat", *columns, axis=1).name, "residual"
    # Optional ones whose values are the defaults: an eighth of the file.
    kept = [a for a in trees.attribute if a.name not in _DEFAULTED]
    del trees.attribute[:]
    trees.attribute.extend(kept)
    graph.nodes.append(trees)
    return Value(graph, "residual")


def _convert(regressor: Regressor, inputs: int) -> onnx.ModelProto:
    converted: onnx.ModelProto
    if isinstance(regressor.trees, XGBRegressor):
        converted = convert_xgboost(
            regressor.trees, initial_types=[("x", XgboostFloatTensorType([None, inputs]))], target_opset=OPSET
        )
    else:
        converted = convert_sklearn(
            regressor.trees,
            initial_types=[("x", FloatTensorType([None, inputs]))],
            target_opset={"": OPSET, "ai.onnx.ml": ML_OPSET},
        )
    return converted


def check_parity(model: bytes, regressor: Regressor, interval: Interval, table: Table, seed: int) -> float:
    """Largest relative difference of ONNX and Python, on all and on random rows; DataError above `PARITY_TOLERANCE`."""
    where = f"{table.operator} ({table.direction})"
    workloads = np.concatenate([table.workloads, _random_workloads(table.workloads, seed)])
    try:
        session = onnx_runtime().InferenceSession(model, providers=["CPUExecutionProvider"])
        answers = session.run(OUTPUT_NAMES, {INPUT_NAME: workloads.astype(np.float32)})
    except Exception as error:
        # ONNX Runtime has exception types of its own, without a common base.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where}: the exported model cannot be run ({reason})") from error
    expected_us = regressor.predict_us(workloads)
    factors = np.exp(log_half_widths(interval, workloads))
    differences = []
    for name, answer, expected in zip(
        OUTPUT_NAMES, answers, (expected_us, expected_us / factors, expected_us * factors), strict=True
    ):
        difference = float(np.max(np.abs(answer[:, 0] / expected - 1)))
        if not difference <= PARITY_TOLERANCE:
            raise DataError(
                f"{where}: ONNX answers {name} that differs from Python's by {difference:.1e}, "
                f"expected at most {PARITY_TOLERANCE:.0e}"
            )
        differences.append(difference)
    return max(differences)


def _random_workloads(workloads: Array, seed: int) -> Array:
    """Whole numbers, half of them within the range of each feature and half beyond it too."""
    generator = np.random.default_rng(seed)
    low, high = np.maximum(workloads.min(axis=0), 1), np.maximum(workloads.max(axis=0), 1)
    beyond = np.repeat([1.0, _BEYOND], _RANDOM_ROWS // 2)[:, None]
    share = generator.random((_RANDOM_ROWS, workloads.shape[1]))
    drawn: Array = np.round(low * (high * beyond / low) ** share)
    return drawn
