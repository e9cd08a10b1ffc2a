"""A collection that is killed at random points and started again ends with the samples of an undisturbed one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample, check_database

LEVELS = (1, 2)
OPERATORS = ("gelu", "rope", "batched_gemm", "adam", "layer_norm")
Point = tuple[int, str, Direction, tuple[int, ...]]


def start(database: Path, plan_file: Path) -> subprocess.Popen[str]:
    arguments = ["collect", "compute", "--db", str(database), "--plan", str(plan_file), "--device", "cpu"]
    arguments += ["--procs-per-node", ",".join(map(str, LEVELS))]
    for operator in OPERATORS:
        arguments += ["--operator", operator]
    return subprocess.Popen(
        [sys.executable, "-m", "kernelcast.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def in_session(session: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cells = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(cells[3]) == session and cells[0] != "Z":
                found.append(int(entry.name))
    return found


def stored(database: Path) -> list[tuple[Point, Sample]]:
    with Database.open(database) as opened:
        levels = {run.id: int(run.conditions["processes_per_node"]) for run in opened.run_list()}
        return [((levels[s.run_id], s.operator, s.direction, s.vector), s) for s in opened.samples_in_full()]


@pytest.mark.slow(minutes=2)
@pytest.mark.skipif(available_cores() < max(LEVELS), reason="one core: no companion fits")
def test_killed_three_times(tmp_path: Path, plan_file: Path) -> None:
    database, longer = tmp_path / "bench.db", tmp_path / "longer.toml"
    longer.write_text(plan_file.read_text().replace("shapes_per_operator = 2", "shapes_per_operator = 6"))
    plan = load_plan(str(longer))
    points = compute_points(plan, OPERATORS)
    expected = {
        (level, point.operator, direction, point.vector)
        for level in LEVELS
        for point in points
        for direction in point.law.directions
    }
    chance = random.Random(33)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = start(database, longer)
        before = len(stored(database)) if database.exists() else 0
        # At any moment after the first new sample, and before the last one.
        more = chance.randrange(1, max(2, (len(expected) - before) // 2))
        while process.poll() is None and (not database.exists() or len(stored(database)) < before + more):
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.3))
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=7200)
        if number == signal.SIGTERM and process.returncode != 0:
            assert process.returncode == 130
            assert said.splitlines()[-1] == "kernelcast: interrupted; measured points are stored"
        deadline = time.monotonic() + 300
        while in_session(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not in_session(process.pid)  # companions end with the process that they keep company
        assert check_database(database) == []
    process = start(database, longer)
    process.communicate(timeout=7200)
    assert process.returncode == 0
    samples = stored(database)
    assert sorted(point for point, _ in samples) == sorted(expected)  # each once
    for _, sample in samples:
        assert sample.repetition_count == len(sample.repetitions) >= 10
        assert all(repetition.kernels for repetition in sample.repetitions)
