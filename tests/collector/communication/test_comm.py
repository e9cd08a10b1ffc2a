"""`collect comm` under the real launcher: real processes, gloo, a few small messages."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from kernelcast.collector.launch import ONE_VOICE
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database, Status

COLLECTIVES = [op.name for op in OPERATORS.values() if op.is_collective and not op.is_on_request]
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
PATIENCE_S = 3000  # against hanging only
COMM = ("-m", "kernelcast.cli.main", "collect", "comm", "--device", "cpu")

# What a process does when it comes to its fourth point; the argument after the rank.
LOST = """
import os, signal, sys
import torch
from kernelcast.cli.main import main
from kernelcast.collector.communication import comm, timing

rank, deed = sys.argv[1:3]
comm._MOST_AGAIN = 0  # what stalls on a busy machine is not held back
if os.environ["RANK"] == rank:
    time_point, calls = comm.time_point, []
    def do(*arguments):
        calls.append(1)
        if len(calls) == 4:
            if deed == "no memory":
                def exhausted(*_):
                    def call():
                        raise torch.OutOfMemoryError("CUDA out of memory")
                    return call
                timing._build = exhausted
                return time_point(*arguments)
            if deed == "raises":
                raise ArithmeticError("an accident")
            os.kill(os.getpid(), getattr(signal, deed))
        return time_point(*arguments)
    comm.time_point = do
main(sys.argv[3:])
"""


def environment_of_workers() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return environment | {"OMP_NUM_THREADS": "1"}


def by_torchrun(processes: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return run([*command, f"--nproc-per-node={processes}", *arguments])


def by_quiet_launcher(
    processes: int, script: Path, rank: str, deed: str, path: Path, plan: Path, *more: str
) -> "subprocess.CompletedProcess[str]":
    """As --procs does it, of a script that misbehaves."""
    command = [sys.executable, "-m", "kernelcast.collector.quiet_torchrun", "--standalone"]
    command += [f"--nproc-per-node={processes}", str(script), rank, deed, *COMM[2:]]
    return run([*command, "--db", str(path), "--plan", str(plan), *more], **{ONE_VOICE: "1"})


def collect(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run([sys.executable, *COMM, *arguments])


def run(command: list[str], **more: str) -> "subprocess.CompletedProcess[str]":
    environment = environment_of_workers() | {"COLUMNS": "1000"} | more
    launcher = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = launcher.communicate(timeout=PATIENCE_S)
    finally:
        launcher.terminate()  # and not kill: it ends its workers
        launcher.wait()
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def own_lines(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("kernelcast: ")]


@pytest.mark.slow(minutes=1)
def test_two_processes_measure_and_resume(tmp_path: Path, plan: Plan, plan_file: Path) -> None:
    path = tmp_path / "bench.db"
    arguments = (*COMM, "--db", str(path), "--plan", str(plan_file), "--site", "Example site")
    sizes = plan.messages.sizes_bytes()
    points = len(sizes) * len(COLLECTIVES)
    for said in (f"{points} measured", f"0 measured, {points} already there"):
        done = by_torchrun(2, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{path}: {said}")
    assert "collectives:" not in done.stderr  # nothing to do, nothing to report

    with Database.open(path, read_only=True) as database:
        samples = list(database.samples_in_full())
        (run,) = database.run_list()
        (fabric,) = database.fabric_list()
    assert Counter((s.operator, s.vector) for s in samples) == Counter(
        (name, (size // 4, 1, 2)) for name in COLLECTIVES for size in sizes
    )
    assert (run.fabric_id, run.command, run.plan) == (fabric.id, "collect comm", "tiny")
    assert run.site == "Example site"
    assert fabric.fingerprint.backend == "gloo"
    for sample in samples:
        assert (sample.status, sample.direction, sample.dtype) == (Status.OK, Direction.ONCE, "float32")
        assert sample.role == ""  # the same exchange, whichever group calls it
        times = [repetition.time_us for repetition in sample.repetitions]
        assert len(times) >= 10
        assert sample.time_us == pytest.approx(sum(sorted(times[:10])[2:7]) / 5, abs=0.001)
        for repetition in sample.repetitions:
            # The kernels belong to the process whose time counts.
            ends = [kernel.start_us + kernel.duration_us for kernel in repetition.kernels]
            assert 0 < max(ends) <= repetition.time_us + 0.01
        names = {kernel.name for repetition in sample.repetitions for kernel in repetition.kernels}
        expected = {
            "all_reduce": "gloo:all_reduce",
            "all_gather": "gloo:all_gather",
            "reduce_scatter": "gloo:",
            "point_to_point": "gloo:recv",
            "all_to_all": "gloo:all_to_all",
        }[sample.operator]
        assert any(name.startswith(expected) for name in names), names


@pytest.mark.slow
def test_processes_started_by_the_command(tmp_path: Path, plan_file: Path) -> None:
    path = tmp_path / "bench.db"
    done = collect("--procs", "3", "--db", str(path), "--plan", str(plan_file), "--site=-Example-")
    assert done.returncode == 0, done.stderr
    sizes, operators = 3, len(COLLECTIVES)
    # Groups of two leave one process without work; a message has two ends.
    points = sizes * (operators + operators - 1)
    assert done.stdout.startswith(f"{path}: {points} measured")
    # On a busy machine there are lines before the last one.
    lines = [line for line in done.stderr.splitlines() if line.startswith("collectives")]
    assert lines[-1] == f"collectives: {points} of {points}"
    with Database.open(path, read_only=True) as database:
        vectors = {(row.operator, row.vector) for row in database.read_samples()}
        assert {run.site for run in database.run_list()} == {"-Example-"}
    assert ("all_reduce", (1024, 1, 3)) in vectors
    assert ("all_gather", (1024, 1, 3)) in vectors
    assert ("reduce_scatter", (1023, 1, 3)) in vectors  # as much for each
    assert {vector for name, vector in vectors if name == "point_to_point"} == {
        (n, 1, 2) for n in (1024, 2048, 4096)
    }


@pytest.fixture
def one_size(tmp_path: Path, plan_file: Path) -> Path:
    """The plan with one size of messages."""
    path = tmp_path / "one_size.toml"
    path.write_text(plan_file.read_text().replace("largest_bytes = 16384", "largest_bytes = 4096"))
    return path


@pytest.mark.slow
def test_groups_that_share_a_node_are_apart_from_lone_ones(tmp_path: Path, one_size: Path) -> None:
    path = tmp_path / "bench.db"
    done = collect("--procs", "4", "--db", str(path), "--plan", str(one_size), "--operator", "all_reduce")
    assert done.returncode == 0, done.stderr
    with Database.open(path, read_only=True) as database:
        found = {(row.vector[1:], row.conditions.get("groups_per_node")) for row in database.read_samples()}
    assert found == {((1, 2), 2), ((1, 4), None)}


@pytest.mark.slow
def test_the_rest_of_the_groups_is_measured_later(tmp_path: Path, one_size: Path) -> None:
    path = tmp_path / "bench.db"
    chosen = ("--procs", "4", "--db", str(path), "--plan", str(one_size))
    done = collect(*chosen, "--layouts", "mp2", "--operator", "all_reduce", "--operator", "all_to_all")
    assert done.returncode == 0, done.stderr
    with Database.open(path, read_only=True) as database:
        found = {
            (row.operator, row.vector[1:], row.conditions.get("groups_per_node"))
            for row in database.read_samples()
        }
    assert found == {(name, (1, 2), 2) for name in ("all_reduce", "all_to_all")}
    # The other groups that these processes can form; stored ones are not measured again.
    more = ("--operator", "all_reduce", "--operator", "all_to_all", "--operator", "all_gather")
    done = collect(*chosen, *more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: 4 measured, 2 already there")
    with Database.open(path, read_only=True) as database:
        found = {(row.vector[1:], row.conditions.get("groups_per_node")) for row in database.read_samples()}
    assert found == {((1, 2), 2), ((1, 4), None)}


@pytest.mark.slow
def test_memory_that_is_not_there_is_a_row_and_the_run_goes_on(tmp_path: Path, plan_file: Path) -> None:
    path, plan = tmp_path / "bench.db", tmp_path / "large.toml"
    text = plan_file.read_text()
    plan.write_text(
        text.replace("largest_bytes = 16384", f"largest_bytes = {2**40}").replace("= 4096", f"= {2**39}")
    )
    done = collect("--procs", "2", "--db", str(path), "--plan", str(plan))
    assert done.returncode == 1
    with Database.open(path, read_only=True) as database:
        rows = database.read_samples(status=None)
    assert len(rows) == 2 * len(COLLECTIVES)
    assert {row.status for row in rows} == {Status.FAILED}
    assert re.search(
        r"first failure: \w+ \[137438953472, 1, 2\]: out of memory: 2 process\(es\) need .* \(process 0\)$",
        done.stderr,
        re.MULTILINE,
    )
    assert done.stderr.splitlines()[-1] == (
        f"kernelcast: error: {path}: nothing measured, all points failed; their reasons are stored"
    )


@pytest.mark.slow
def test_one_process_says_what_is_wrong_and_all_end(tmp_path: Path, plan_file: Path) -> None:
    # Process 0 alone opens the database; the other one must not wait for it.
    path = tmp_path / "none" / "bench.db"
    done = by_torchrun(2, *COMM, "--db", str(path), "--plan", str(plan_file))
    assert done.returncode == 1  # the launcher's own
    assert own_lines(done) == [f"kernelcast: error: {path}: its folder does not exist"]
    assert "[rank" not in done.stderr  # no worker's traceback


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "words", "processes"),
    [
        ("SIGKILL", "process 1 was ended by SIGKILL", 3),
        ("raises", "Traceback (most recent call last)", 2),
    ],
)
def test_a_process_that_is_lost_ends_the_others_and_keeps_what_was_measured(
    tmp_path: Path, plan_file: Path, deed: str, words: str, processes: int
) -> None:
    path, script = tmp_path / "bench.db", tmp_path / "lost.py"
    script.write_text(LOST)
    two = ("--operator", "all_reduce", "--operator", "all_gather")
    done = by_quiet_launcher(processes, script, "1", deed, path, plan_file, *two)
    assert done.returncode == 1
    if deed == "SIGKILL":
        assert done.stderr.splitlines() == [f"kernelcast: error: {words}; measured points are stored"]
    else:
        # What should never happen is shown as it is, by the process that it happened to.
        assert done.stderr.count(words) == 1
        assert "ArithmeticError: an accident" in done.stderr
    assert done.stdout == ""
    with Database.open(path) as database:
        assert len(database.read_samples()) == 3
        assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    if deed == "SIGKILL":
        again = collect("--procs", "3", "--db", str(path), "--plan", str(plan_file), *two)
        assert again.returncode == 0, again.stderr
        # 3 sizes of 2 operators in groups of 3 and of 2.
        assert again.stdout.startswith(f"{path}: 9 measured, 3 already there")


@pytest.mark.slow
def test_a_process_without_memory_in_a_collective_says_so_and_ends_the_run(
    tmp_path: Path, plan_file: Path
) -> None:
    path, script = tmp_path / "bench.db", tmp_path / "lost.py"
    script.write_text(LOST)
    done = by_quiet_launcher(2, script, "1", "no memory", path, plan_file)
    assert done.returncode == 1
    (line,) = own_lines(done)
    assert line.startswith("kernelcast: error: collect comm: ")
    assert line.endswith("out of memory: CUDA out of memory (process 1); measured points are stored")
    assert "terminate called" not in done.stderr
    with Database.open(path) as database:
        assert len(database.read_samples()) == 3


@pytest.mark.slow
def test_a_process_that_stops_ends_the_others_at_the_timeout(tmp_path: Path, plan_file: Path) -> None:
    path, script = tmp_path / "bench.db", tmp_path / "lost.py"
    script.write_text(LOST)
    done = by_quiet_launcher(2, script, "1", "SIGSTOP", path, plan_file, "--timeout", "30")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "kernelcast: error: collect comm: nothing was heard from the other processes for 30 s (--timeout); "
        "measured points are stored"
    ]
    with Database.open(path) as database:
        assert len(database.read_samples()) == 3


@pytest.mark.parametrize("deed", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_signal_ends_all_after_the_point(tmp_path: Path, plan_file: Path, deed: str) -> None:
    path, script = tmp_path / "bench.db", tmp_path / "lost.py"
    script.write_text(LOST)
    done = by_torchrun(2, str(script), "0", deed, *COMM[2:], "--db", str(path), "--plan", str(plan_file))
    assert own_lines(done) == ["kernelcast: interrupted; measured points are stored"]
    with Database.open(path) as database:
        assert len(database.read_samples()) == 4


@pytest.mark.slow
def test_the_command_told_to_end_leaves_no_process(tmp_path: Path, plan_file: Path) -> None:
    path = tmp_path / "bench.db"
    command = [sys.executable, *COMM, "--procs", "2", "--db", str(path), "--plan", str(plan_file)]
    process = subprocess.Popen(
        [*command, "--again"],
        env=environment_of_workers(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines() == ["kernelcast: interrupted; measured points are stored"]
