"""ONNX graphs that crash, hang, fill the memory or lie, where ONNX Runtime is given them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OUTPUTS = ("time_us", "low_us", "high_us")


def node(
    kind: str, *inputs: str, domain: str = "", output: str = "time_us", **attributes: Any
) -> onnx.NodeProto:
    """A node with one output."""
    return helper.make_node(kind, list(inputs), [output], domain=domain, **attributes)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    *,
    columns: int = 3,
    opset: int = 15,
    ml_opset: int = 3,
    ir_version: int = 8,
    change: Callable[[onnx.ModelProto], object] = lambda model: None,
    **constants: Any,
) -> bytes:
    """A model of these nodes, its interval the time itself; constants are float32, lists of integers indices."""
    ends = [node("Identity", "time_us", output=name) for name in OUTPUTS[1:]]
    is_whole = any("time_us" in one.output for one in nodes)
    graph = helper.make_graph(
        [*nodes, *(ends if is_whole else [])],
        "hostile",
        [helper.make_tensor_value_info("workload", TensorProto.FLOAT, ["rows", columns])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1]) for name in OUTPUTS],
        [numpy_helper.from_array(_array(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", ml_opset)],
        ir_version=ir_version,
    )
    change(model)
    content: bytes = model.SerializeToString()
    return content


def _array(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float32)


def trees_of(depth: int = 2, **changed: Any) -> bytes:
    """A model with one tree, a chain: node 2k is a branch to the leaf 2k + 1 and to node 2k + 2; interval of 1 to 1."""
    every = 2 * depth + 1
    is_leaf = [n % 2 == 1 or n == every - 1 for n in range(every)]
    leaves = [n for n in range(every) if is_leaf[n]]
    attributes: dict[str, Any] = {
        "n_targets": 1,
        "nodes_treeids": [0] * every,
        "nodes_nodeids": list(range(every)),
        "nodes_featureids": [0] * every,
        "nodes_values": [float(n) for n in range(every)],
        "nodes_modes": ["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
        "nodes_truenodeids": [0 if leaf else n + 1 for n, leaf in enumerate(is_leaf)],
        "nodes_falsenodeids": [0 if leaf else n + 2 for n, leaf in enumerate(is_leaf)],
        "target_treeids": [0] * len(leaves),
        "target_nodeids": leaves,
        "target_ids": [0] * len(leaves),
        "target_weights": [1.0] * len(leaves),
    }
    for name, value in changed.items():
        attributes[name] = value(attributes[name]) if callable(value) else value
    return model_of([node("TreeEnsembleRegressor", "workload", domain="ai.onnx.ml", **attributes)])


def _loop() -> bytes:
    """What it was given, after 2^62 rounds."""
    going = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    carried = helper.make_tensor_value_info("carried", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Identity", ["carried"], ["next"]),
        ],
        "body",
        [helper.make_tensor_value_info("n", TensorProto.INT64, []), going, carried],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    loop = node("Loop", "times", "going", "workload", body=body)
    return model_of([loop], times=2**62, going=1.0, change=_booleans)


def _booleans(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].CopyFrom(helper.make_tensor("going", TensorProto.BOOL, [], [True]))


def _with_function(model: onnx.ModelProto) -> None:
    model.functions.append(
        helper.make_function(
            "ai.onnx.ml", "F", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])], []
        )
    )


def _outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def _doubled() -> bytes:
    """Forty times as wide as itself each time: 2^40 columns."""
    nodes = [
        node("Concat", *[f"v{n}" if n else "workload"] * 2, output=f"v{n + 1}", axis=1) for n in range(40)
    ] + [node("Identity", "v40")]
    return model_of(nodes)


def _replaced(index: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [*values[:index], value, *values[index + 1 :]]


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "loop": (_loop, "constant 'times' has shape"),
    "random": (lambda: model_of([node("RandomUniformLike", "workload")]), "operator 'RandomUniformLike'"),
    "expand": (
        lambda: model_of([node("Expand", "workload", "shape")], shape=[1_000_000, 3_000]),
        "operator 'Expand'",
    ),
    "constant of shape": (lambda: model_of([node("ConstantOfShape", "n")], n=[1 << 40]), "'ConstantOfShape'"),
    "outer sum": (
        lambda: model_of([node("Add", "a", "b")], a=np.zeros((30_000, 1)), b=np.zeros((1, 30_000))),
        "constant numbers, expected at most 65536",
    ),
    "rows times rows": (
        lambda: model_of(
            [node("MatMul", "workload", "w", output="v"), node("Add", "v", "workload")], w=np.zeros(3)
        ),
        "MatMul has inputs of shapes",
    ),
    "wide": (_doubled, "expected at most 4096"),
    "wide product": (
        lambda: model_of([node("MatMul", "workload", "w")], w=np.zeros((3, 20_000))),
        "computes 60003 columns",
    ),
    "whole division by zero": (
        lambda: model_of([node("Div", "a", "b")], a=[1], b=[0]),
        "Div reads 'a', which is not",
    ),
    "cast to text": (lambda: model_of([node("Cast", "workload", to=8)]), "Cast has attributes"),
    "other axis": (lambda: model_of([node("Concat", "workload", "workload", axis=0)]), "expected axis 1"),
    "index beyond": (
        lambda: model_of([node("Gather", "workload", "i", axis=1)], i=[3]),
        "takes columns 3 to 3 of 3",
    ),
    "foreign domain": (
        lambda: model_of([node("Gelu", "workload", domain="com.microsoft")]),
        "operator 'com.microsoft.Gelu'",
    ),
    "foreign opset": (
        lambda: model_of([], change=lambda m: m.opset_import.append(helper.make_opsetid("com.microsoft", 1))),
        "domain 'com.microsoft'",
    ),
    "old opset": (lambda: model_of([], opset=6), "opset 6 of '', expected 13 to 21"),
    "new trees": (lambda: model_of([], ml_opset=5), "opset 5 of 'ai.onnx.ml', expected 1 to 3"),
    "new IR": (lambda: model_of([], ir_version=99), "IR version 99, expected 3 to 10"),
    "function": (
        lambda: model_of([node("F", "workload", domain="ai.onnx.ml")], change=_with_function),
        "the model has field 25",
    ),
    "external file": (
        lambda: model_of([node("Add", "workload", "a")], a=[1.0], change=_outside),
        "a constant has field 1[34]",
    ),
    "two graphs": (lambda: model_of([]) + model_of([]), "twice"),
    "many nodes": (
        lambda: model_of([node("Identity", "workload", output=f"v{n}") for n in range(2_001)]),
        "has 2001 nodes",
    ),
    "defined twice": (
        lambda: model_of([node("Identity", "workload", output="workload")]),
        "'workload' twice",
    ),
    "read before": (lambda: model_of([node("Identity", "later")]), "reads 'later', which is not computed"),
    "large": (lambda: b"\x0a" * ((1 << 24) + 1), "has 16777217 bytes"),
    "deep tree": (lambda: trees_of(100_000 - 1), "deeper than 64"),
    "larger tree": (lambda: trees_of(100_001), "has 200003 nodes"),
    "circle": (
        lambda: trees_of(nodes_falsenodeids=_replaced(2, 0)),
        "deeper than 64, or one that is no tree",
    ),
    "shared node": (lambda: trees_of(nodes_falsenodeids=_replaced(0, 1)), "one that is no tree"),
    "branch beyond": (
        lambda: trees_of(nodes_truenodeids=_replaced(0, 5)),
        "branch to a node that is not there",
    ),
    "branch before": (lambda: trees_of(nodes_truenodeids=_replaced(0, -1)), "branch to a node that is not"),
    "feature beyond": (lambda: trees_of(nodes_featureids=_replaced(0, 3)), "features 0 to 3, there are 3"),
    "feature before": (lambda: trees_of(nodes_featureids=_replaced(0, -(2**40))), "there are 3"),
    "target beyond": (lambda: trees_of(target_ids=_replaced(0, 1 << 30)), "weight for a node or target"),
    "weight of no node": (lambda: trees_of(target_nodeids=_replaced(0, 99)), "weight for a node or target"),
    "weight of no tree": (lambda: trees_of(target_treeids=_replaced(0, 7)), "weight for a node or target"),
    "leaf without weight": (lambda: trees_of(target_nodeids=_replaced(0, 3)), "leaves without one weight"),
    "many targets": (lambda: trees_of(n_targets=1 << 40), "several targets"),
    "transform": (lambda: trees_of(post_transform="PROBIT"), "several targets or transforms"),
    "other mode": (lambda: trees_of(nodes_modes=_replaced(0, "BRANCH_EQ")), "mode b'BRANCH_EQ'"),
    "short list": (lambda: trees_of(nodes_values=[1.0]), "lists of different lengths"),
    "tree number": (lambda: trees_of(nodes_treeids=_replaced(0, -1)), "not numbered from 0"),
    "tree numbers": (lambda: trees_of(nodes_treeids=[-1] * 5), "not numbered from 0"),
    "node number": (lambda: trees_of(nodes_nodeids=_replaced(2, 1 << 62)), "nodes are not numbered from 0"),
    "NaN threshold": (
        lambda: trees_of(nodes_values=_replaced(0, np.nan)),
        "nodes_values that are not finite",
    ),
    "infinite threshold": (
        lambda: trees_of(nodes_values=_replaced(2, -np.inf)),
        "nodes_values that are not finite",
    ),
    "NaN weight": (
        lambda: trees_of(target_weights=_replaced(0, np.nan)),
        "target_weights that are not finite",
    ),
    "infinite base": (lambda: trees_of(base_values=[np.inf]), "base_values that are not finite"),
    "NaN constant": (
        lambda: model_of([node("Add", "workload", "a")], a=[np.nan]),
        "numbers that are not finite",
    ),
    "other type": (lambda: trees_of(nodes_values=[0, 1, 2, 3, 4]), "nodes_values of another type"),
}
