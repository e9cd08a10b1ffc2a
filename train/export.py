"""A regressor as one ONNX graph: workload vector in, time in µs out; features, trees and exp are inside.

Opset 15 (the newest that both converters write) with the tree operators of `ai.onnx.ml` opset 3. Input `workload`
float32 [rows, features], output `time_us` float32 [rows, 1]. The export is compared with the Python regressor before
anybody sees it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as XgboostFloatTensorType
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from xgboost import XGBRegressor

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.baseline import Constant, PowerLaw
from kernelcast.train.dataset import Array, Table
from kernelcast.train.regressor import Regressor

OPSET = 15
ML_OPSET = 3
PARITY_TOLERANCE = 1e-4
_RANDOM_ROWS = 256
_IR_VERSION = 8


class _Graph:
    """Collects nodes and constants; `add` names the single output of each node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name


def to_onnx(regressor: Regressor) -> bytes:
    """The regressor as ONNX bytes; same regressor, same bytes."""
    features = list(OPERATORS[regressor.operator].features)
    graph = _Graph()
    log_us = graph.add("Add", _baseline(graph, regressor), _residual(graph, regressor, len(features)))
    graph.add("Exp", log_us, output="time_us")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            regressor.operator,
            [helper.make_tensor_value_info("workload", TensorProto.FLOAT, ["rows", len(features)])],
            [helper.make_tensor_value_info("time_us", TensorProto.FLOAT, ["rows", 1])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        ir_version=_IR_VERSION,
        producer_name="kernelcast",
    )
    helper.set_model_props(model, {"features": " ".join(features), "unit": "microseconds"})
    onnx.checker.check_model(model)
    encoded: bytes = model.SerializeToString(deterministic=True)
    return encoded


def _baseline(graph: _Graph, regressor: Regressor) -> str:
    """Logarithm of the baseline, [rows, 1]."""
    baseline = regressor.baseline
    if isinstance(baseline, Constant):
        return graph.constant([[baseline.log_us]])
    logs = graph.add("Log", "workload")
    if isinstance(baseline, PowerLaw):
        powers = graph.add("MatMul", logs, graph.constant(np.array(baseline.exponents)[:, None]))
        return graph.add("Add", powers, graph.constant([[baseline.log_us]]))
    # Each weight joins its monomial as a logarithm: products of sizes alone would leave float32 little room.
    kept = [(p, w) for p, w in zip(baseline.powers, baseline.weights_us, strict=True) if w > 0]
    total = graph.constant([[baseline.constant_us]])
    if kept:
        exponents = graph.constant(np.array([p for p, _ in kept], dtype=np.float64).T)
        shifts = graph.constant(np.log([[w for _, w in kept]]))
        terms_us = graph.add("Exp", graph.add("Add", graph.add("MatMul", logs, exponents), shifts))
        total = graph.add("Add", graph.add("ReduceSum", terms_us, graph.constant([1], np.int64)), total)
    return graph.add("Log", total)


def _residual(graph: _Graph, regressor: Regressor, features: int) -> str:
    """What the trees add, [rows, 1]."""
    columns = [
        graph.add("Gather", "workload", graph.constant([column], np.int64), axis=1)
        for column in range(features)
    ]
    product = columns[0]
    for column in columns[1:]:
        product = graph.add("Mul", product, column)
    inputs = graph.add("Concat", "workload", product, axis=1)
    converted = _convert_trees(regressor, features + 1)
    trees = next(node for node in converted.graph.node if node.op_type == "TreeEnsembleRegressor")
    if len(converted.graph.node) != 1:
        kinds = ", ".join(node.op_type for node in converted.graph.node)
        raise DataError(
            f"{regressor.operator}: trees converted to {kinds}, expected one TreeEnsembleRegressor"
        )
    trees.input[0], trees.output[0] = inputs, "residual"
    graph.nodes.append(trees)
    return "residual"


def _convert_trees(regressor: Regressor, inputs: int) -> onnx.ModelProto:
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


def check_parity(model: bytes, regressor: Regressor, table: Table, seed: int) -> float:
    """Largest relative difference between ONNX and Python over the table's rows and random rows in its range.

    Raises:
        DataError: it exceeds `PARITY_TOLERANCE`.
    """
    workloads = np.concatenate([table.workloads, _random_workloads(table.workloads, seed)])
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (answer,) = session.run(["time_us"], {"workload": workloads.astype(np.float32)})
    expected = regressor.predict_us(workloads)
    worst = float(np.max(np.abs(answer[:, 0] / expected - 1)))
    if not worst <= PARITY_TOLERANCE:
        raise DataError(
            f"{table.operator} ({table.direction}): ONNX answers differ from Python's by {worst:.1e}, "
            f"expected at most {PARITY_TOLERANCE:.0e}"
        )
    return worst


def _random_workloads(workloads: Array, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    low, high = workloads.min(axis=0), workloads.max(axis=0)
    drawn: Array = np.round(low * (high / low) ** generator.random((_RANDOM_ROWS, workloads.shape[1])))
    return drawn
