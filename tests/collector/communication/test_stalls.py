"""What `collect comm` does where something else takes the cores for a while."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.store import Database

# Every other repetition of an all-gather's first measurements takes long.
STALLED = """
import sys
from collections import Counter
from dataclasses import replace
from kernelcast.cli.main import main
from kernelcast.collector.communication import comm

times, measured, time_point = int(sys.argv[1]), Counter(), comm.time_point

def stalls(point, *more):
    found = time_point(point, *more)
    measured[point] += 1
    if point.operator == "all_gather" and measured[point] <= times:
        return [replace(one, time_us=one.time_us + 1e6 * (one.index % 2)) for one in found]
    return found

comm.time_point = stalls
main(sys.argv[2:])
"""


@pytest.mark.parametrize(("times", "samples"), [(1, 2), (9, 3)])
def test_a_point_that_stalls_is_measured_again_at_most_twice(
    tmp_path: Path, plan_file: Path, times: int, samples: int
) -> None:
    script, path = tmp_path / "stalled.py", tmp_path / "bench.db"
    script.write_text(STALLED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
    ]
    command += [str(times), "collect", "comm", "--device", "cpu", "--db", str(path), "--plan", str(plan_file)]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Database.open(path, read_only=True) as database:
        found = [sample for sample in database.read_samples() if sample.operator == "all_gather"]
    points = {sample.vector for sample in found}
    # A machine that is busy by itself stalls them as well.
    assert samples * len(points) <= len(found) <= 3 * len(points)
    assert f": {5 * len(points)} measured" in " ".join(done.stdout.split())
