"""What a stranger's script or request cannot do: reach into homes, or have a time limit that is none."""

from pathlib import Path

import pytest

from kernelcast.walltime import read_time_limit
from kernelcast.walltime.fields import give
from kernelcast.walltime.job import BatchScript


@pytest.mark.parametrize("path", ["~/secret.toml", "~root/secret.toml"])
def test_a_script_does_not_reach_into_homes(path: str) -> None:
    script = BatchScript.parse(f"#!/bin/sh\n#KERNELCAST model={path}\n", name="x", folder=Path("/job"))
    assert script.given["model"].value == f"/job/{path}"
    options = give([("model", path)], origin="--model", folder=Path("/job"), home=True)
    assert not str(options["model"].value).startswith("/job")


@pytest.mark.parametrize("text", ["0", "00:00:00", "0-0", "9999999-00:00:00", "0.5s", "99999999d"])
def test_no_limit_and_absurd_ones_are_refused(text: str) -> None:
    assert read_time_limit(text) is None


def test_time_limits_are_durations() -> None:
    assert read_time_limit("1-12:00:00") == 129_600
