"""`collect comm` under the real launcher: real processes, gloo, a few small messages."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from kernelcast.collector.comm import World, collect_comm
from kernelcast.collector.plan import Plan
from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database, Status

COLLECTIVES = [op.name for op in OPERATORS.values() if op.collective]
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
COMM = ("-m", "kernelcast.cli.main", "collect", "comm", "--device", "cpu")

# Process 1 goes away in the middle.
LOST = """
import os, sys
from kernelcast.collector import comm
from kernelcast.collector.plan import load_plan
from kernelcast.runtime import DataError
from kernelcast.store import Database

if comm.World.from_launcher().rank == 1:
    measure, calls = comm._measure, []
    def leave(*arguments):
        calls.append(1)
        if len(calls) == 4:
            os._exit(3)
        return measure(*arguments)
    comm._measure = leave
try:
    comm.collect_comm(lambda: Database.open(sys.argv[1], create=True), load_plan(sys.argv[2]), device="cpu")
except DataError as error:
    print(f"said: {error}", flush=True)
"""


def launch(processes: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment["OMP_NUM_THREADS"] = "1"
    launcher = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = launcher.communicate(timeout=100)
    finally:
        launcher.terminate()  # and not kill: it ends its workers
        launcher.wait()
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def own_lines(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("kernelcast: ")]


def test_two_processes_measure_and_resume(tmp_path: Path, plan: Plan, plan_file: Path) -> None:
    path = tmp_path / "bench.db"
    arguments = (*COMM, "--db", str(path), "--plan", str(plan_file), "--site", "Example site")
    sizes = plan.messages.sizes_bytes()
    points = len(sizes) * len(COLLECTIVES)
    for said in (f"{points} measured", f"0 measured, {points} already there"):
        done = launch(2, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{path}: {said}\n"
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
        times = [repetition.time_us for repetition in sample.repetitions]
        assert len(times) in (10, 20, 30, 40)
        assert sample.time_us == pytest.approx(sum(sorted(times[:10])[2:7]) / 5, abs=0.001)
        for repetition in sample.repetitions:
            # The kernels are those of the process whose time counts.
            ends = [kernel.start_us + kernel.duration_us for kernel in repetition.kernels]
            assert 0 < max(ends) <= repetition.time_us + 0.01
        names = {kernel.name for repetition in sample.repetitions for kernel in repetition.kernels}
        expected = {
            "all_reduce": "gloo:all_reduce",
            "all_gather": "gloo:all_gather",
            "reduce_scatter": "gloo:",
            "point_to_point": "gloo:recv",
        }[OPERATORS[sample.operator].collective]
        assert any(name.startswith(expected) for name in names), names


def test_three_processes_by_the_command(tmp_path: Path, plan_file: Path) -> None:
    path = tmp_path / "bench.db"
    done = launch(3, *COMM, "--db", str(path), "--plan", str(plan_file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}: 18 measured\n"  # 3 sizes, and no message between two of three
    assert [line for line in done.stderr.splitlines() if line.startswith("collectives")] == [
        "collectives: 18 of 18"
    ]
    with Database.open(path, read_only=True) as database:
        vectors = {(row.operator, row.vector) for row in database.read_samples()}
    assert ("dp_all_reduce", (1024, 1, 3)) in vectors
    for group in ("mp", "dp"):
        assert (f"{group}_all_gather", (1024, 1, 3)) in vectors
        assert (f"{group}_reduce_scatter", (1023, 1, 3)) in vectors  # as much for each
    assert "pp_p2p" not in {name for name, _ in vectors}


def test_one_process_says_what_is_wrong_and_all_end(tmp_path: Path, plan_file: Path) -> None:
    # Process 0 alone opens the database; the other one must not wait for it.
    start, path = time.monotonic(), tmp_path / "none" / "bench.db"
    done = launch(2, *COMM, "--db", str(path), "--plan", str(plan_file))
    assert done.returncode == 1  # the launcher's own
    assert own_lines(done) == [f"kernelcast: error: {path}: its folder does not exist"]
    assert "[rank" not in done.stderr  # no worker's traceback
    assert time.monotonic() - start < 60


def test_a_process_that_is_lost_ends_the_others_and_keeps_what_was_measured(
    tmp_path: Path, plan_file: Path
) -> None:
    path, script = tmp_path / "bench.db", tmp_path / "lost.py"
    script.write_text(LOST)
    done = launch(2, str(script), str(path), str(plan_file))
    said = [line for line in done.stdout.splitlines() if line.startswith("said: ")]
    assert len(said) <= 1  # the launcher may end process 0 before it can speak
    assert all(line.startswith("said: collect comm over gloo: ") for line in said)
    assert "[rank0]: Traceback" not in done.stderr
    with Database.open(path) as database:
        assert len(database.read_samples()) == 3


def environment(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    for name, value in zip(VARIABLES, values, strict=True):
        monkeypatch.setenv(name, value)


def test_place_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, "5", "1", "8", "4")
    world = World.from_launcher()
    assert world == World(rank=5, local_rank=1, size=8, local_size=4)
    assert world.nodes == 2


@pytest.mark.parametrize("missing", VARIABLES)
def test_outside_a_launcher(monkeypatch: pytest.MonkeyPatch, plan: Plan, missing: str) -> None:
    environment(monkeypatch, "0", "0", "2", "2")
    monkeypatch.delenv(missing)
    with pytest.raises(UsageError, match=r"collect comm runs under a launcher.*expected: torchrun --nproc"):
        collect_comm(lambda: Database.open("unused.db"), plan)


@pytest.mark.parametrize(
    "values", [("0", "0", "1", "1"), ("0", "0", "3", "2"), ("0", "0", "2", "0"), ("0", "0", "0", "0")]
)
def test_worlds_that_measure_nothing(monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...]) -> None:
    environment(monkeypatch, *values)
    with pytest.raises(UsageError, match=r"process\(es\), \d per node; expected 2 or more, nodes alike"):
        World.from_launcher()


@pytest.mark.parametrize("rank", ["", "first", "-1"])
def test_a_rank_that_is_no_number(monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    environment(monkeypatch, rank, "0", "2", "2")
    with pytest.raises(UsageError, match="runs under a launcher"):
        World.from_launcher()


def test_messages_too_small_for_the_processes(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    environment(monkeypatch, "0", "0", "2048", "2")
    with pytest.raises(
        UsageError, match=r"messages\.smallest_bytes is 4096, expected at least 8192: an element"
    ):
        collect_comm(lambda: Database.open("unused.db"), plan, device="cpu")


def test_unknown_dtype(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    environment(monkeypatch, "0", "0", "2", "2")
    with pytest.raises(UsageError, match="dtype 'int4' is unknown"):
        collect_comm(lambda: Database.open("unused.db"), plan, dtype="int4")
