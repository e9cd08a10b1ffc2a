"""Graphs run by numpy answer bit for bit what ONNX Runtime answers."""

from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import read_bundle
from kernelcast.runtime.answers.onnx_runtime import open_session, run_graph
from kernelcast.runtime.answers.predictor import OUTPUT_NAMES, Predictor
from kernelcast.runtime.bundle.graph import check_graph
from kernelcast.runtime.operators import Direction

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


def test_a_session_is_opened_for_what_is_asked_often() -> None:
    [path] = [one for one in _SHIPPED if one.stem == "h100-sxm"]
    predictor = Predictor(read_bundle(path))
    for size in range(64, 94):
        assert len(predictor._sessions) == int(size > 80)
        predictor.predict_us("gemm", Direction.FORWARD, [[512.0, size, 512.0]])
