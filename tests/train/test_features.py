"""What trees see: products, quotients and remainders that round alike in numpy and in ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from kernelcast.runtime.answers.predictor import INPUT_NAME as INPUT
from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.dataset import Array
from kernelcast.train.export import Graph, Value
from kernelcast.train.formula import INPUTS, input_columns, tree_inputs

GELU, ADAM = OPERATORS["gelu"], OPERATORS["adam"]


def test_columns_of_each_kind() -> None:
    workloads = np.array([[300.0, 5.0, 7.0]])
    product = [300, 5, 7, 10500]
    assert tree_inputs(workloads, GELU).tolist() == [product]
    assert tree_inputs(workloads, GELU, "aligned").tolist() == [[*product, 300 % 128]]
    assert tree_inputs(workloads, GELU, "chunks").tolist() == [[*product, 300 % 128, 300]]
    pairs = [1500, 2100, 35]
    multiples = [300 % 8, 300 % 32, 300 % 128, 5, 5, 5, 7, 7, 7]
    assert tree_inputs(workloads, GELU, "shapes").tolist() == [[*product, *pairs, *multiples]]
    # The only pair of two features is their product already.
    assert tree_inputs(workloads[:, :2], ADAM, "shapes").tolist() == [[300, 5, 1500, *multiples[:6]]]


def test_a_feature_that_often_equals_another_is_not_counted_twice() -> None:
    columns = tree_inputs(np.array([[2.0, 3.0, 5.0, 5.0, 7.0]]), OPERATORS["rope"])
    assert columns.tolist() == [[2, 3, 5, 5, 7, 2 * 3 * 5 * 7]]


def test_waves_of_tiles() -> None:
    """109 tiles of 128 × 128 take two waves on 108 multiprocessors, one on 132 or 148."""
    columns = tree_inputs(np.array([[109 * 128.0, 128.0, 1.0]]), OPERATORS["gemm"], "tiles")[0].tolist()
    quotient, *waves = columns[16:23]
    assert quotient == 109
    assert waves[:3] == pytest.approx([216 / 109, 132 / 109, 148 / 109])
    assert waves[3:] == pytest.approx([108 / 55, 132 / 55, 148 / 55])
    assert len(columns) == 4 + 3 + 9 + 3 * 7


@settings(max_examples=40)
@given(
    workloads=hnp.arrays(np.float64, (8, 3), elements=st.integers(0, 2**31).map(float)),
    kind=st.sampled_from(INPUTS),
)
def test_onnx_computes_the_same_bits(workloads: Array, kind: str) -> None:
    graph = Graph()
    columns = list(input_columns(Value(graph, INPUT), GELU, kind))
    graph.node("Concat", *columns, output="columns", axis=1)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "columns",
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", 3])],
            [helper.make_tensor_value_info("columns", TensorProto.FLOAT, ["rows", len(columns)])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 15)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(["columns"], {INPUT: workloads.astype(np.float32)})
    assert answer.tobytes() == np.ascontiguousarray(tree_inputs(workloads, GELU, kind)).tobytes()
