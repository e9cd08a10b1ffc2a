"""A regressor as one ONNX graph: workload vector in, time in µs out; features, trees and exp are inside.

Opset 15 (the newest that both converters write) with the tree operators of `ai.onnx.ml` opset 3. Input `workload`
float32 [rows, features], output `time_us` float32 [rows, 1]. The export is compared with the Python regressor before
anybody sees it.
"""

from collections.abc import Sequence
from functools import reduce
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
from kernelcast.train.baseline import Baseline, Constant, PowerLaw, Powers, Roofline
from kernelcast.train.dataset import Array, Table
from kernelcast.train.regressor import Regressor

OPSET = 15
ML_OPSET = 3
PARITY_TOLERANCE = 1e-4
_RANDOM_ROWS = 256
_BEYOND = 4.0
_IR_VERSION = 8


class _Graph:
    """Collects nodes and constants. Every node has one output, whose name is answered; all are [rows, …]."""

    def __init__(self, features: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.columns = [
            self.add("Gather", "workload", self.constant([column], np.int64), axis=1)
            for column in range(features)
        ]

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def product(self, powers: Powers) -> str:
        """Product of the features, each as often as its exponent says."""
        factors = [name for name, power in zip(self.columns, powers, strict=True) for _ in range(power)]
        return reduce(lambda product, factor: self.add("Mul", product, factor), factors)

    def weighted_sum(self, terms: Sequence[tuple[float, str]]) -> str:
        """Sum of weight · value."""
        return reduce(
            lambda total, term: self.add("Add", total, term),
            [self.add("Mul", name, self.constant([[weight]])) for weight, name in terms],
        )


def to_onnx(regressor: Regressor) -> bytes:
    """The regressor as ONNX bytes; same regressor, same bytes."""
    features = list(OPERATORS[regressor.operator].features)
    graph = _Graph(len(features))
    log_us = graph.add("Add", _baseline(graph, regressor.baseline), _residual(graph, regressor))
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


def _baseline(graph: _Graph, baseline: Baseline) -> str:
    """Logarithm of the baseline, [rows, 1]."""
    if isinstance(baseline, Constant):
        return graph.constant([[baseline.log_us]])
    if isinstance(baseline, PowerLaw):
        logs = graph.add("Log", graph.add("Max", "workload", graph.constant(1.0)))
        powers = graph.add("MatMul", logs, graph.constant(np.array(baseline.exponents)[:, None]))
        return graph.add("Add", powers, graph.constant([[baseline.log_us]]))
    return graph.add("Log", _roofline_us(graph, baseline))


def _roofline_us(graph: _Graph, roofline: Roofline) -> str:
    """Time of a roofline in µs, [rows, 1]."""
    # Fitted weights are often 0, and need no node then.
    total_us = graph.constant([[roofline.constant_us]])
    work = [(w, p) for w, p in zip(roofline.weights_us, roofline.powers, strict=True) if w > 0]
    if work:
        terms = graph.weighted_sum([(weight, graph.product(powers)) for weight, powers in work])
        total_us = graph.add("Add", total_us, terms)
    knees = [(w, k) for w, k in zip(roofline.knee_weights_us, roofline.knees, strict=True) if w > 0]
    if knees:
        moved = graph.weighted_sum([(c, graph.product(powers)) for c, powers in roofline.traffic])
        shares = graph.add("Mul", moved, graph.constant([[1 / knee for _, knee in knees]]))
        above = graph.add("Relu", graph.add("Sub", shares, graph.constant([[1.0]])))
        weights_us = graph.constant([[weight * knee] for weight, knee in knees])
        total_us = graph.add("Add", total_us, graph.add("MatMul", above, weights_us))
    return total_us


def _residual(graph: _Graph, regressor: Regressor) -> str:
    """What the trees add, [rows, 1]."""
    features = len(graph.columns)
    inputs = graph.add("Concat", "workload", graph.product((1,) * features), axis=1)
    converted = _convert_trees(regressor, features + 1)
    kinds = [node.op_type for node in converted.graph.node]
    if kinds != ["TreeEnsembleRegressor"]:
        raise DataError(
            f"{regressor.operator}: trees converted to {', '.join(kinds)}, expected one TreeEnsembleRegressor"
        )
    (trees,) = converted.graph.node
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
    """Largest relative difference between ONNX and Python over the table's rows and random rows around them.

    Raises:
        DataError: it exceeds `PARITY_TOLERANCE`, or the model cannot be run.
    """
    where = f"{table.operator} ({table.direction})"
    workloads = np.concatenate([table.workloads, _random_workloads(table.workloads, seed)])
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (answer,) = session.run(["time_us"], {"workload": workloads.astype(np.float32)})
    except Exception as error:
        # ONNX Runtime has exception types of its own, without a common base.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where}: the exported model cannot be run ({reason})") from error
    expected_us = regressor.predict_us(workloads)
    worst = float(np.max(np.abs(answer[:, 0] / expected_us - 1)))
    if not worst <= PARITY_TOLERANCE:
        raise DataError(
            f"{where}: ONNX answers differ from Python's by {worst:.1e}, expected at most {PARITY_TOLERANCE:.0e}"
        )
    return worst


def _random_workloads(workloads: Array, seed: int) -> Array:
    """Whole numbers, half of them within the range of each feature and half beyond it too."""
    generator = np.random.default_rng(seed)
    low, high = np.maximum(workloads.min(axis=0), 1), np.maximum(workloads.max(axis=0), 1)
    beyond = np.repeat([1.0, _BEYOND], _RANDOM_ROWS // 2)[:, None]
    share = generator.random((_RANDOM_ROWS, workloads.shape[1]))
    drawn: Array = np.round(low * (high * beyond / low) ** share)
    return drawn
