"""The runtime stays light: nothing beyond the standard library, numpy and onnxruntime is ever loaded."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kernelcast.runtime
from kernelcast.runtime.answers.onnx_runtime import IS_FUSED

PROGRAM = """
import sys
before = set(sys.modules)
from kernelcast.runtime import *
estimate = Estimator.load(sys.argv[1]).predict(
    model=ModelConfig.from_file(sys.argv[2]),
    parallelism=Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1),
)
assert estimate.step_time_s > 0
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names)))
"""


def test_a_prediction_loads_only_numpy_and_onnxruntime(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    model = tmp_path / "tiny.toml"
    sizes = ("hidden_size = 8", "sequence_length = 4", "attention_heads = 2", "layers = 1")
    model.write_text("\n".join((*sizes, "vocabulary_size = 9")))
    command = [sys.executable, "-c", PROGRAM, str(make_bundle()), str(model)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"kernelcast", "numpy"} <= set(found)
    forbidden = {
        "torch",
        "sklearn",
        "xgboost",
        "skl2onnx",
        "onnx",
        "onnxmltools",
        "sqlite3",
        "sqlite_utils",
        "click",
    }
    assert not forbidden & set(found)
    assert set(found) <= {"kernelcast", "numpy", "onnxruntime"}


COMMAND = """
import sys
from kernelcast.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_a_predicted_layout_imports_few_modules_and_none_of_a_search() -> None:
    words = "predict --hardware h100-sxm --model llama-3-70b --pp 4 --tp 8 --dp 64 --micro-batch 1 --micro-batches 16"
    command = [sys.executable, "-c", COMMAND, *words.split(), "--quiet"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    assert "kernelcast.runtime.estimate.engine" in loaded
    assert sum(name.partition(".")[0] == "kernelcast" for name in loaded) <= 120
    assert not {"numpy.ma", "zipfile"} & set(loaded)
    assert ("onnxruntime" in loaded) is not IS_FUSED, "numpy answers few questions"
    unused = (
        "runtime.search",
        "runtime.frameworks.rows",
        "runtime.views.timeline",
        "serve",
        "store",
    )
    assert not [name for name in loaded if name.startswith(tuple(f"kernelcast.{one}" for one in unused))]


def test_public_names() -> None:
    names = kernelcast.runtime.__all__
    assert len(names) <= 13
    assert names == sorted(names)
    assert set(names) <= set(dir(kernelcast.runtime))
    for name in names:
        assert getattr(kernelcast.runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'torch'"):
        kernelcast.runtime.torch  # noqa: B018
