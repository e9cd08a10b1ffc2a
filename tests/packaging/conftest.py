"""Archive and wheel, built once as `make dist` builds them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parent.parent.parent
for name, value in (
    ("PIP_RETRIES", "10"),
    ("PIP_TIMEOUT", "120"),
):  # a package index answers late now and then
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def built() -> Iterator[tuple[Path, Path]]:
    """Source archive and wheel."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "release" / "dist.py"), folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
        assert done.returncode == 0, done.stderr
        archive, wheel = map(Path, done.stdout.splitlines()[-2:])
        yield archive, wheel
