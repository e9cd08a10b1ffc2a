"""ONNX Runtime is used without its telemetry: no identifier is left in the user's home."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
