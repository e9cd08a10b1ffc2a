"""The digest of the measuring code."""

import subprocess
import sys
from pathlib import Path

import kernelcast.collector.own_run as module
from kernelcast.collector.own_run import code_digest


def test_it_is_stable_and_covers_files_that_exist() -> None:
    assert code_digest() == code_digest()
    assert len(code_digest()) == 32
    int(code_digest(), 16)
    folder = Path(module.__file__).parent
    assert all(any(folder.glob(pattern)) for pattern in module._MEASURING)


# Imported where something is measured, without a say in what is timed.
ELSEWHERE = {
    "communication/watchdog.py", "communication/world.py",
    "machine/probe_cpu.py", "machine/probe_gpu.py", "machine/sensors.py",
}  # fmt: skip
PROGRAM = """
import sys
import kernelcast.collector.communication.timing, kernelcast.collector.measuring.companions
import kernelcast.collector.measuring.measurer, kernelcast.collector.training.worker
print(*(m.__file__ for name, m in sys.modules.items() if name.startswith("kernelcast.collector.")), sep="\\n")
"""


def test_whatever_measuring_imports_is_covered() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    folder = Path(module.__file__).parent
    covered = {path for pattern in module._MEASURING for path in folder.glob(pattern)}
    imported = {Path(line) for line in done.stdout.splitlines()}
    assert folder / "measuring" / "harness.py" in imported
    left = {str(path.relative_to(folder)) for path in imported - covered if path.name != "__init__.py"}
    assert left == ELSEWHERE
