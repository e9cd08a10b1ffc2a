"""Worker processes: what comes back from them, and that none is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelcast.collector.launch import LOST_PEERS, run_workers, show_workers
from kernelcast.collector.quiet_torchrun import cause_of
from kernelcast.runtime import DataError


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules workers can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_arguments_threads_and_every_process(workers: Path) -> None:
    (workers / "says.py").write_text(
        "import os, pathlib, sys\n"
        "rank = os.environ['RANK']\n"
        "pathlib.Path(sys.argv[1], rank).write_text(sys.argv[2] + ' ' + os.environ['OMP_NUM_THREADS'])\n"
    )
    run_workers("says", [str(workers), "hello"], processes=2, threads=3, timeout_s=600)
    assert [(workers / rank).read_text() for rank in "01"] == ["hello 3", "hello 3"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ValueError('the first reason')", "ValueError: the first reason"),
        ("import sys; sys.exit('only words')", "only words"),
        # What those say who lost a killed worker is not the reason.
        (
            "import os, signal; print('[rank1]: RuntimeError: Connection reset by peer', flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)",
            "process 0 was ended by SIGKILL",
        ),
    ],
)
def test_last_words_are_one_line(workers: Path, program: str, words: str) -> None:
    (workers / "fails.py").write_text(program)
    with pytest.raises(DataError) as caught:
        run_workers("fails", [], processes=1, threads=1, timeout_s=600)
    message = str(caught.value)
    assert message == f"fails: exit status 1 on 1 process(es): {words}"


def test_output_is_shown_as_it_comes(workers: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workers / "shows.py").write_text(
        "import sys; print('result'); print('note', file=sys.stderr); sys.exit(1)"
    )
    assert show_workers("shows", [], processes=1, threads=1) == 1
    out, err = capfd.readouterr()
    assert out == "result\n"
    assert err == "note\n"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_whatever_ends_the_command_ends_the_workers(workers: Path, number: signal.Signals) -> None:
    # torchrun has its workers in sessions of their own: the terminal's interrupt does not reach them.
    (workers / "waits.py").write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1], 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    program = (
        "from kernelcast.collector.launch import show_workers\n"
        f"show_workers('waits', [{str(workers)!r}], processes=1, threads=1)\n"
    )
    # In a session of its own, so that the interrupt reaches exactly what a terminal's would.
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    pid_file, deadline = workers / "pid", time.monotonic() + 600
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = int(pid_file.read_text())
    os.killpg(parent.pid, number)
    err = parent.communicate(timeout=600)[1]
    if number != signal.SIGKILL:  # which leaves no time to say anything
        assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert "elastic" not in err
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(worker)


def is_running(process: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("statuses", "cause"),
    [
        ({0: LOST_PEERS, 1: -9}, "process 1 was ended by SIGKILL"),
        ({0: 1, 1: -9}, "process 1 was ended by SIGKILL"),
        ({0: LOST_PEERS, 1: -6, 2: LOST_PEERS}, "process 1 was ended by SIGABRT"),
        ({0: -15}, "process 0 was ended by SIGTERM"),
        ({0: 1, 1: 1}, ""),  # one of them has said it
        ({0: 2, 1: LOST_PEERS}, ""),
        ({0: -15, 1: LOST_PEERS}, ""),  # torchrun ended the first one after it had spoken
        ({0: LOST_PEERS, 1: 3}, "process 1 ended with exit status 3"),
        ({0: LOST_PEERS, 1: LOST_PEERS}, "the processes lost each other"),
    ],
)
def test_what_is_said_of_workers_that_ended(statuses: dict[int, int], cause: str) -> None:
    assert cause_of(statuses) == cause
