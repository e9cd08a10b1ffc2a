"""A regressor as one ONNX graph: workload vector in, time and interval in µs out; features, trees and exp are inside.

Opset 15 (the newest that both converters write) with the tree operators of `ai.onnx.ml` opset 3. Input `workload`
float32 [rows, features]; outputs `time_us`, `low_us` and `high_us`, float32 [rows, 1] each. docs/bundle.md shows how
other languages use one.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxmltools import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as XgboostFloatTensorType
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType
from xgboost import XGBRegressor

from kernelcast.runtime.answers.predictor import OUTPUT_NAMES
from kernelcast.runtime.bundle.interval import Interval
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.baseline import Baseline, Constant, PowerLaw, Roofline
from kernelcast.train.collective_baseline import LatencyBandwidth
from kernelcast.train.export_collective import latency_bandwidth_us, residual_scale
from kernelcast.train.features import InputColumn, input_columns
from kernelcast.train.onnx_graph import INPUT, Graph
from kernelcast.train.regressor import Regressor

OPSET = 15
ML_OPSET = 3
_IR_VERSION = 8
_DEFAULTED = ("nodes_hitrates", "nodes_missing_value_tracks_true")


def to_onnx(regressor: Regressor, interval: Interval, properties: Mapping[str, str]) -> bytes:
    """The regressor as ONNX bytes, `properties` as its metadata_props; same input, same bytes."""
    features = list(OPERATORS[regressor.operator].features)
    graph = Graph(len(features))
    log_us = graph.add("Add", _baseline(graph, regressor.baseline), _residual(graph, regressor))
    time_us, low_us, high_us = OUTPUT_NAMES
    graph.add("Exp", log_us, output=time_us)
    factor = _interval_factor(graph, interval)
    graph.add("Div", time_us, factor, output=low_us)
    graph.add("Mul", time_us, factor, output=high_us)
    # ONNX Runtime warns of constants that no node reads.
    read = {name for node in graph.nodes for name in node.input}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            regressor.operator,
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", len(features)])],
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
    return encoded


def _interval_factor(graph: Graph, interval: Interval) -> str:
    """By what the time is divided and multiplied, [rows, 1] or [1, 1]."""
    *own, other = interval.log_half_widths
    if interval.by == "all":
        return graph.constant([[np.exp(other)]])
    if interval.by == "size":
        # Group i lies above bound i − 1: each bound that is passed adds the step to the next group's half-width.
        bounds = graph.constant([interval.size_bounds])
        chosen = graph.as_number(graph.add("Greater", graph.size(), bounds))
        start, steps = interval.log_half_widths[0], np.diff(interval.log_half_widths)
    else:
        nodes, gpus = (
            graph.add("Equal", column, graph.constant([values], np.float32))
            for column, values in zip(graph.columns[-2:], zip(*interval.layouts, strict=True), strict=True)
        )
        chosen = graph.as_number(graph.add("And", nodes, gpus))
        start, steps = other, np.array(own) - other
    added = graph.add("MatMul", chosen, graph.constant(steps[:, None]))
    return graph.add("Exp", graph.add("Add", added, graph.constant([[start]])))


def _baseline(graph: Graph, baseline: Baseline) -> str:
    """Logarithm of the baseline, [rows, 1]."""
    if isinstance(baseline, Constant):
        return graph.constant([[baseline.log_us]])
    if isinstance(baseline, PowerLaw):
        logs = graph.add("Log", graph.add("Max", INPUT, graph.constant(1.0)))
        powers = graph.add("MatMul", logs, graph.constant(np.array(baseline.exponents)[:, None]))
        return graph.add("Add", powers, graph.constant([[baseline.log_us]]))
    if isinstance(baseline, LatencyBandwidth):
        return graph.add("Log", latency_bandwidth_us(graph, baseline))
    return graph.add("Log", _roofline_us(graph, baseline))


def _roofline_us(graph: Graph, roofline: Roofline) -> str:
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


def _residual(graph: Graph, regressor: Regressor) -> str:
    """What the trees add, [rows, 1]."""
    columns = input_columns(regressor.candidate.inputs, len(graph.columns))
    inputs = graph.add("Concat", *(_input(graph, column) for column in columns), axis=1)
    converted = _convert_trees(regressor, len(columns))
    kinds = [node.op_type for node in converted.graph.node]
    if kinds != ["TreeEnsembleRegressor"]:
        raise DataError(
            f"{regressor.operator}: trees converted to {', '.join(kinds)}, expected one TreeEnsembleRegressor"
        )
    (trees,) = converted.graph.node
    trees.input[0], trees.output[0] = inputs, "residual"
    # Optional ones whose values are the defaults: an eighth of the file.
    kept = [a for a in trees.attribute if a.name not in _DEFAULTED]
    del trees.attribute[:]
    trees.attribute.extend(kept)
    graph.nodes.append(trees)
    if isinstance(regressor.baseline, LatencyBandwidth):
        return graph.add("Mul", "residual", residual_scale(graph, regressor.baseline))
    return "residual"


def _input(graph: Graph, column: InputColumn) -> str:
    """A column that the trees see, [rows, 1]."""
    powers = tuple(column.features.count(feature) for feature in range(len(graph.columns)))
    product = graph.product(powers)
    return graph.remainder(product, column.modulus) if column.modulus else product


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
