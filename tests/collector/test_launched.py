"""What is said and done where workers end, without starting any: a launcher by hand, on a clock by hand."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from kernelcast.collector import launch, quiet_torchrun
from kernelcast.collector.launch import LOST_PEERS, run_workers, show_workers
from kernelcast.runtime import DataError

ARGUMENTS = [
    "-m",
    "kernelcast.collector.quiet_torchrun",
    "--standalone",
    "--nproc-per-node=3",
    "-m",
    "it",
    "a",
    "b",
]


class Launcher:
    """Ends `ends_s` seconds after its start with `status`, having said `said`; a clock without pauses counts waits."""

    def __init__(self, ends_s: float, status: int = 0, said: str = "", obeys: bool = True) -> None:
        self.ends_s, self.status, self.said, self.obeys = ends_s, status, said, obeys
        self.now_s, self.done, self.waited, self.stdin = 0.0, list[str](), list[float | None](), io.BytesIO()

    def __call__(
        self, command: list[str], *, stdin: int, stdout: Any, stderr: int, env: Any, start_new_session: bool
    ) -> Any:
        assert (command[0], command[1:]) == (sys.executable, ARGUMENTS)
        shown = stdout is None
        assert (stdin, stderr, start_new_session) == (
            subprocess.PIPE,
            None if shown else subprocess.STDOUT,
            True,
        )
        own = {
            name: env.get(name)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", launch.PARENT_PIPE, launch.ONE_VOICE)
        }
        assert list(own.values()) == ["5", "5", "1", "1" if shown else None]
        if not shown:
            stdout.write(self.said)
        return self

    def wait(self, timeout: float | None = None) -> int:
        self.waited.append(timeout)
        self.now_s += (
            self.ends_s - self.now_s if timeout is None else min(timeout, max(0.0, self.ends_s - self.now_s))
        )
        if self.now_s < self.ends_s:
            raise subprocess.TimeoutExpired("it", timeout or 0)
        return self.status

    def poll(self) -> int | None:
        return self.status if self.now_s >= self.ends_s else None

    def terminate(self) -> None:
        self.done.append(f"terminated at {self.now_s:g}")
        self.ends_s = self.now_s + (0 if self.obeys else 1e6)

    def kill(self) -> None:
        self.done.append(f"killed at {self.now_s:g}")
        self.ends_s = self.now_s


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What `run_workers` says at the end, and what became of the launcher."""

    def start(launcher: Launcher, timeout_s: float, progress: Any = None) -> str:
        monkeypatch.setattr(launch, "subprocess", SimpleNamespace(
            Popen=launcher, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT, TimeoutExpired=subprocess.TimeoutExpired
        ))  # fmt: skip
        monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: launcher.now_s))
        try:
            run_workers("it", ["a", "b"], processes=3, threads=5, timeout_s=timeout_s, progress=progress)
            said = "done"
        except DataError as error:
            said = str(error)
        assert launcher.stdin.closed
        return "; ".join([said, *launcher.done, f"{launcher.now_s:.4g} s"])

    return start


def test_workers_have_as_long_as_they_make_progress(started: Callable[..., str]) -> None:
    assert started(Launcher(7), 10) == "done; 7 s"
    late = "it: no result after 10 s on 3 process(es); terminated at 10"
    assert started(Launcher(11), 10) == f"{late}; 10 s"
    assert started(Launcher(1e9, obeys=False), 10) == f"{late}; killed at 50; 50 s"
    assert started(looked := Launcher(3), 10, lambda: False) == "done; 3 s"
    assert looked.waited == [pytest.approx(0.2)] * 15
    progress = iter([False] * 20 + [True] + [False] * 1000)  # at 4.2 s: 10 s from there
    assert started(Launcher(99), 10, lambda: next(progress)) == (
        "it: no result after 10 s on 3 process(es); terminated at 14.2; 14.2 s"
    )
    steady = iter([True] * 1000)
    assert started(Launcher(99), 10, lambda: next(steady)) == "done; 99 s"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "no output"),
        ("\n  a \n\nb\nc\nd\n", "b | c | d"),
        ("a\na\na\n", "a"),
        (
            "Traceback\n[rank1]: ValueError: odd\nTypeError: other\nends\n",
            "ValueError: odd | TypeError: other",
        ),
        ("x.y.SomeError: one\nRuntimeError: reset by peer\n", "x.y.SomeError: one"),
        ("RuntimeError: reset by peer\nmore\n", "RuntimeError: reset by peer | more"),
        (
            "noise\nRuntimeError: by peer\nprocess 12 was ended by SIGKILL\n",
            "process 12 was ended by SIGKILL",
        ),
        ("noise\nprocess 2 ended with exit status 9\nmore\n", "process 2 ended with exit status 9"),
        ("noise\nprocess 2 ends\n", "noise | process 2 ends"),
        ("".join(f"AnError: {n}\n" for n in range(5)), "AnError: 2 | AnError: 3 | AnError: 4"),
        ("AnError: " + 600 * "x", "AnError: " + 491 * "x"),
        ("  AnError: indented\nAnError:none\n", "AnError: indented"),
    ],
)
def test_the_reason_is_in_what_workers_said_last(started: Callable[..., str], said: str, reason: str) -> None:
    assert started(Launcher(1, 4, said), 10) == f"it: exit status 4 on 3 process(es): {reason}; 1 s"


def test_workers_that_are_shown_have_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in (0, 3):
        monkeypatch.setattr(launch.subprocess, "Popen", launcher := Launcher(1e5, status))
        assert show_workers("it", ["a", "b"], processes=3, threads=5) == status
        assert (launcher.waited, launcher.done) == ([None], [])


def failed(**exits: tuple[int, int]) -> ChildFailedError:
    """Workers with their exit status and the second in which they ended."""
    failures = {}
    for name, (status, at_s) in exits.items():
        failures[int(name[1:])] = failure = ProcessFailure(int(name[1:]), 1, status, "none")
        failure.timestamp = at_s  # type: ignore[misc]
    return ChildFailedError("it", failures)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (failed(r0=(-9, 100)), "process 0 was ended by SIGKILL"),
        # Who ignores SIGTERM is killed by torchrun after 30 s.
        (failed(r0=(7, 100), r1=(-9, 125)), "process 0 ended with exit status 7"),
        (failed(r0=(7, 100), r1=(-9, 124)), "process 1 was ended by SIGKILL"),
        (failed(r0=(-15, 100), r1=(-6, 130)), "process 1 was ended by SIGABRT"),
        (failed(r0=(LOST_PEERS, 100), r1=(LOST_PEERS, 200)), "the processes lost each other"),
        (failed(r0=(1, 100), r1=(LOST_PEERS, 100)), ""),
        (SignalException("it", signal.SIGTERM), ""),
    ],
)
@pytest.mark.parametrize("shown", [False, True])
def test_torchrun_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    words: str,
    shown: bool,
) -> None:
    def main(arguments: list[str]) -> None:
        assert arguments == ["--standalone", "it"]
        raise error

    monkeypatch.setattr(quiet_torchrun.run, "main", main)
    monkeypatch.setattr(quiet_torchrun.logging, "disable", lambda level: None)
    monkeypatch.setattr(sys, "argv", ["quiet_torchrun", "--standalone", "it"])
    monkeypatch.delenv(launch.PARENT_PIPE, raising=False)
    monkeypatch.setenv(launch.ONE_VOICE, "1" if shown else "")
    with pytest.raises(SystemExit) as caught:
        quiet_torchrun.main()
    assert caught.value.code == 1
    line = f"kernelcast: error: {words}; measured points are stored" if shown else words
    assert capsys.readouterr().err == (f"{line}\n" if words else "")
