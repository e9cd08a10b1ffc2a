"""datasets/sustained.py: shipped rates follow from the tables."""

import subprocess
import sys
from pathlib import Path

import pytest

DATASETS = Path(__file__).parent.parent.parent / "datasets"


@pytest.mark.slow(minutes=2)
def test_the_table_is_made_anew() -> None:
    done = subprocess.run(
        [sys.executable, str(DATASETS / "sustained.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
