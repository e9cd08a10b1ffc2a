"""The prior of what sums get wrong is the published one."""

import math
from importlib.resources import files
from pathlib import Path

import pytest

from kernelcast.runtime.answers.uncertainty import STEP_LOG_SPREAD
from kernelcast.validate.published import SITES
from kernelcast.validate.runs import RunsFile


def test_it_is_the_root_mean_square_of_the_published_errors() -> None:
    errors = [
        run.published_error
        for site in SITES
        for run in RunsFile.read(Path(str(files("kernelcast.validate").joinpath(f"{site}.toml")))).runs
    ]
    assert len(errors) == 10
    squares = [error**2 for error in errors if error is not None]
    assert pytest.approx(math.sqrt(sum(squares) / len(squares)), abs=5e-4) == STEP_LOG_SPREAD
