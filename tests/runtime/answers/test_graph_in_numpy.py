"""Graphs run by numpy answer bit for bit what ONNX Runtime answers, where a processor fuses multiply and add."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernelcast.runtime import read_bundle
from kernelcast.runtime.answers.onnx_runtime import IS_FUSED, open_session, run_graph
from kernelcast.runtime.answers.predictor import OUTPUT_NAMES, Predictor
from kernelcast.runtime.bundle.graph import check_graph
from kernelcast.runtime.operators import Direction

pytestmark = pytest.mark.skipif(not IS_FUSED, reason="numpy answers nothing on this processor")
_SHIPPED = sorted((Path(__file__).parents[3] / "runtime" / "shipped").rglob("*.kcast"))


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_the_same_bits_as_onnx_runtime(path: Path) -> None:
    random = np.random.default_rng(1)
    bundle = read_bundle(path)
    for entry in bundle.manifest.regressors:
        model = bundle.files[entry.file]
        session, graph = open_session(model), check_graph(model, len(entry.features))
        low, high = np.log(np.maximum(np.array(entry.training_range).T, 1))
        for count in (4, 64):  # inside of what was fitted, and beyond
            logs = random.uniform(low - 0.5, high + 0.5, (count, len(low)))
            rows = np.exp(logs).round().astype(np.float32)
            values = run_graph(graph, rows)
            expected = session.run(OUTPUT_NAMES, {"workload": rows})
            for name, output in zip(OUTPUT_NAMES, expected, strict=True):
                assert values[name.encode()].tobytes() == output.tobytes(), (entry.file, name)


_RANDOM = np.random.default_rng(1)
_LOGS = _RANDOM.uniform(-103, 88, (1 << 16, 1))
_SPECIAL = np.array([[0.0], [-1.0], [np.inf], [-np.inf], [np.nan], [1.0], [1e-45], [89.0]])
_NUMBERS = np.concatenate([_LOGS, np.exp(_LOGS), _SPECIAL])


@pytest.mark.parametrize(
    ("kind", "rows", "factors"),
    [
        ("Exp", _NUMBERS, None),
        ("Log", _NUMBERS, None),
        *(
            ("MatMul", _RANDOM.normal(size=(64, size)), _RANDOM.normal(size=(size, columns)))
            for size, columns in ((2, 1), (7, 3), (300, 1))
        ),
    ],
)
def test_the_same_bits_of_every_operator(kind: str, rows: Any, factors: Any) -> None:
    rows = rows.astype(np.float32)
    constants = [] if factors is None else [numpy_helper.from_array(factors.astype(np.float32), "factors")]
    node = helper.make_node(kind, ["workload", *(one.name for one in constants)], ["found"])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("workload", "found")
    ]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 15)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    [expected] = open_session(model).run(["found"], {"workload": rows})
    found = run_graph(check_graph(model, rows.shape[1]), rows)[b"found"]
    np.testing.assert_array_equal(found, expected)


def test_a_session_is_opened_for_what_is_asked_often() -> None:
    [path] = [one for one in _SHIPPED if one.stem == "h100-sxm"]
    predictor = Predictor(read_bundle(path))
    for size in range(64, 94):
        assert len(predictor._sessions) == int(size > 80)
        predictor.predict_us("gemm", Direction.FORWARD, [[512.0, size, 512.0]])
    for count, opened in ((1024, 1), (1025, 2)):
        rows = [[size, float(count)] for size in range(1, count + 1)]
        predictor.predict_us("float8_cast", Direction.FORWARD, rows)
        assert len(predictor._sessions) == opened
