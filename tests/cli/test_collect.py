"""`kernelcast collect`: what it prints, how it is interrupted, and how it fails."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli import collect as module
from kernelcast.cli.collect import collect
from kernelcast.collector.compute import Collected
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.runtime import DataError, UsageError
from kernelcast.store import Database
from tests.cli.printed import printed, without_next

pytestmark = pytest.mark.usefixtures("wide", "small_caches")

PLAN = Path(__file__).parent.parent / "data" / "plans" / "tiny.toml"


def invoke(database: Path, *arguments: str) -> Result:
    options = ["--db", str(database), "--plan", str(PLAN), "--device", "cpu"]
    return CliRunner().invoke(collect, ["compute", *options, *arguments])


def test_compute_says_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "bench.db"
    chosen = ("--operator", "gelu", "--operator", "fused_causal_softmax")
    first = invoke(path, *chosen, "--site", "Example site")
    assert first.exit_code == 0
    assert without_next(first.stdout) == f"{path}: 2 measured, 2 not supported here\n"
    assert "operators: 4 of 4\n" in first.stderr
    again = invoke(path, *chosen)
    assert without_next(again.output) == f"{path}: 0 measured, 4 already there\n"
    with Database.open(path, read_only=True) as database:
        assert {row.operator for row in database.read_samples(status=None)} == set(chosen[1::2])
        assert [run.site for run in database.run_list()] == ["Example site"]


@pytest.mark.slow
@pytest.mark.skipif(available_cores() < 2, reason="one core: no companion fits")
def test_levels_are_measured_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "bench.db"
    assert without_next(invoke(path, "--operator", "gelu").stdout) == f"{path}: 2 measured\n"
    # Each level is known on its own. Companions start once: they import torch.
    both = invoke(path, "--operator", "gelu", "--procs-per-node", "1,2")
    assert both.exit_code == 0
    assert without_next(both.stdout) == f"{path}: 2 measured, 2 already there\n"
    with Database.open(path, read_only=True) as database:
        rows = database.read_samples()
        assert Counter(row.conditions["processes_per_node"] for row in rows) == {1: 4, 2: 4}


def test_a_note_says_what_was_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    module.show_collected(Collected(measured=5, flagged=2), Path("bench.db"))
    said = capsys.readouterr()
    assert said.out == "bench.db: 5 measured\n"
    assert said.err == "note: 2 disturbed or unstable; --again flagged measures them again\n"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--plan", "none.toml"), UsageError, "plan none.toml: no such file, expected a TOML file or one of"),
        (("--dtype", "int8"), UsageError, "dtype 'int8' is unknown; expected one of float32"),
        (("--device", "npu"), UsageError, "device 'npu' is unknown"),
        (("--operator", "conv"), UsageError, "operator 'conv' is unknown; known are embedding, "),
        (
            ("--procs-per-node", "1,"),
            UsageError,
            "--procs-per-node is '1,', expected different whole numbers",
        ),
        (
            ("--procs-per-node", "0"),
            UsageError,
            "--procs-per-node is '0', expected different whole numbers from 1",
        ),
        (
            ("--procs-per-node", "2,2"),
            UsageError,
            "--procs-per-node is '2,2', expected different whole numbers",
        ),
        (
            ("--procs-per-node", "99"),
            UsageError,
            "processes per node: found 99 with 1 thread(s) each, expected at",
        ),
    ],
)
def test_errors_name_the_thing(
    tmp_path: Path, arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    result = invoke(tmp_path / "bench.db", *arguments)
    assert isinstance(result.exception, error)
    assert str(result.exception).startswith(message)
    assert list(tmp_path.iterdir()) == []  # wrong use makes no database


def test_a_database_that_cannot_be(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none" / "x.db", "its folder does not exist"),
        (PLAN, "is not a SQLite"),
    ):
        result = invoke(path)
        assert isinstance(result.exception, DataError)
        assert str(result.exception).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("done", "said", "fails"),
    [
        (Collected(measured=3, failed=1, first_failure="gelu [2]: odd"), "3 measured, 1 failed", False),
        (Collected(already_there=3, failed=1, first_failure="gelu [2]: odd"), "0 measured, 3 already", False),
        (Collected(failed=2, first_failure="gelu [2]: odd"), "0 measured, 2 failed", True),
    ],
)
def test_failures_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Collected, said: str, fails: bool
) -> None:
    path = tmp_path / "bench.db"
    monkeypatch.setattr(module, "collect_compute", lambda *_, **__: done)
    result = invoke(path)
    assert result.stdout.startswith(f"{path}: {said}")
    assert result.stderr == "first failure: gelu [2]: odd\n"
    if fails:
        assert isinstance(result.exception, DataError)
        assert (
            str(result.exception) == f"{path}: nothing measured, all points failed; their reasons are stored"
        )
    else:
        assert result.exception is None


def test_comm_outside_a_launcher_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if "RANK" in name]:
        monkeypatch.delenv(name)
    said = printed(capsys, "collect", "comm", "--db", tmp_path / "x.db", status=2)
    assert said == (
        "kernelcast: error: collect comm runs in several processes, found one and no launcher; expected "
        "kernelcast collect comm --procs 2 --db FILE, or torchrun or srun in front of it\n"
    )
    assert list(tmp_path.iterdir()) == []


def count(path: Path) -> int:
    """The number of points stored so far; polled while another process writes the database."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            (points,) = connection.execute(
                "SELECT count(*) FROM (SELECT DISTINCT operator, vector FROM sample)"
            ).fetchone()
    except sqlite3.OperationalError:  # no file or no table yet
        return 0
    return int(points)


@pytest.mark.parametrize(
    ("more", "number"),
    [
        (["--again"], signal.SIGINT),
        pytest.param(["--budget", "1h"], signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, more: list[str], number: signal.Signals
) -> None:
    path = tmp_path / "bench.db"
    plan = tmp_path / "long.toml"
    plan.write_text(PLAN.read_text().replace("shapes_per_operator = 2", "shapes_per_operator = 12"))
    command = [sys.executable, "-m", "kernelcast.cli.main", "collect", "compute", "--device", "cpu"]
    command += ["--db", str(path), "--plan", str(plan), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while count(path) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "kernelcast: interrupted; measured points are stored"
    kept = count(path)
    assert kept >= 2
    with Database.open(path) as database:
        assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
        # Whole points only: both directions, all repetitions.
        for row in database.read_samples():
            assert row.repetition_count >= 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.db", "long.toml"]
