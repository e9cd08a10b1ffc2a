"""ONNX Runtime is used without its telemetry, and an interrupt during its import is not lost."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import sys
from kernelcast.runtime import Estimator
estimator = Estimator.load(sys.argv[1])
(operator, direction), entry = next(iter(estimator.bundle.entries.items()))
estimator.predictor.predict_us(operator, direction, [[1.0] * len(entry.features)])
"""


def test_nothing_is_left_in_the_home(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # Without the variables of continuous integration, where ONNX Runtime reports nothing anyway.
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(make_bundle())],
        env={**kept, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(home.rglob("*")) == []


# Its compiled module drops exceptions that are raised while it initialises itself, or makes them an ImportError.
IMPORT = """
import os, signal, sys, time
import numpy
from kernelcast.runtime.answers.onnx_runtime import onnx_runtime

class Found:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.endswith("onnxruntime_pybind11_state"):
            signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))

sys.meta_path.insert(0, Found)
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
try:
    onnx_runtime()
    time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("delay_s", [0.002, 0.005, 0.01, 0.03])
def test_an_interrupt_during_the_import_arrives(delay_s: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, str(delay_s)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
