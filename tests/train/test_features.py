"""What trees see: products and remainders that round alike in numpy and in ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from kernelcast.train.dataset import Array
from kernelcast.train.features import INPUTS, InputColumn, input_columns, tree_inputs
from kernelcast.train.onnx_graph import INPUT, Graph


def test_columns_of_each_kind() -> None:
    workloads = np.array([[300.0, 5.0, 7.0]])
    product = [300, 5, 7, 10500]
    assert tree_inputs(workloads).tolist() == [product]
    assert tree_inputs(workloads, "aligned").tolist() == [[*product, 300 % 128]]
    assert tree_inputs(workloads, "chunks").tolist() == [[*product, 300 % 128, 300]]
    pairs = [1500, 2100, 35]
    tiles = [300 % 8, 300 % 32, 300 % 128, 5, 5, 5, 7, 7, 7]
    assert tree_inputs(workloads, "shapes").tolist() == [[*product, *pairs, *tiles]]
    # The only pair of two features is their product already.
    assert input_columns("shapes", 2)[:4] == (
        InputColumn((0,)),
        InputColumn((1,)),
        InputColumn((0, 1)),
        InputColumn((0,), 8),
    )


@pytest.mark.parametrize("kind", INPUTS)
def test_moduli_are_powers_of_two(kind: str) -> None:
    moduli = {column.modulus for column in input_columns(kind, 4)} - {0}
    assert all(modulus & (modulus - 1) == 0 for modulus in moduli)


@settings(max_examples=40)
@given(
    workloads=hnp.arrays(np.float64, (8, 3), elements=st.integers(0, 2**31).map(float)),
    kind=st.sampled_from(INPUTS),
)
def test_onnx_computes_the_same_bits(workloads: Array, kind: str) -> None:
    columns = input_columns(kind, 3)
    graph = Graph(3)
    names = []
    for column in columns:
        product = graph.product(tuple(column.features.count(feature) for feature in range(3)))
        names.append(graph.remainder(product, column.modulus) if column.modulus else product)
    graph.add("Concat", *names, output="columns", axis=1)
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
    assert answer.tobytes() == np.ascontiguousarray(tree_inputs(workloads, kind)).tobytes()
