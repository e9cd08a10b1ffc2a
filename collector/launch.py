"""Starts worker processes of this package under torchrun on this node, and ends them."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import IO

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.terminations import terminations_interrupt

PARENT_PIPE = "KERNELCAST_PARENT_PIPE"
"""Set where quiet_torchrun's standard input is a pipe from its parent process, with which it ends."""

ONE_VOICE = "KERNELCAST_ONE_VOICE"
"""Set where workers' output is shown: a worker that lost its peers leaves the message to quiet_torchrun."""

LOST_PEERS = 75
"""Exit status of a worker that lost its peers."""

_LAST_LINES = 3
# `[rank0]: ValueError: …` at the start of a line is the end of a worker's traceback.
_ERROR_LINE = re.compile(r"(\[rank\d+\]: )?(?P<error>[\w.]*(Error|Exception): \S.*)")
# quiet_torchrun's message about a worker that could not print its own.
_ENDED_LINE = re.compile(r"process \d+ (was ended by|ended with) ")

# torchrun gives every worker its own session and, when terminated, kills them after 30 s.
_GRACE_S = 40
_SECONDS_BETWEEN_LOOKS = 0.2


def run_workers(
    module: str,
    arguments: Sequence[str],
    *,
    processes: int,
    threads: int,
    timeout_s: float,
    progress: Callable[[], bool] | None = None,
) -> None:
    """Run `python -m MODULE ARGUMENTS` in `processes` processes under torchrun, each with `threads` threads.

    `progress` is polled; where it returns True, the timeout restarts. DataError where a worker failed (its last lines
    are quoted) or timed out; all workers are ended.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        status = _launch(module, arguments, processes, threads, timeout_s, output, progress)
        if status is None:
            raise DataError(f"{module}: no result after {timeout_s:g} s on {processes} process(es)")
        if status != 0:
            output.seek(0)
            raise DataError(
                f"{module}: exit status {status} on {processes} process(es): {_error_lines(output.read())}"
            )


def show_workers(module: str, arguments: Sequence[str], *, processes: int, threads: int) -> int:
    """Like `run_workers` without a timeout, with output and errors shown at once; returns the exit status.

    KeyboardInterrupt where SIGINT or SIGTERM arrived; the workers are ended.
    """
    with terminations_interrupt():
        status = _launch(module, arguments, processes, threads, None, None, more={ONE_VOICE: "1"})
    return 1 if status is None else status


def _launch(
    module: str,
    arguments: Sequence[str],
    processes: int,
    threads: int,
    timeout_s: float | None,
    output: IO[str] | None,
    progress: Callable[[], bool] | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> int | None:
    """Exit status of torchrun; None at the timeout."""
    command = [
        sys.executable,
        "-m",
        "kernelcast.collector.quiet_torchrun",
        "--standalone",
        f"--nproc-per-node={processes}",
        "-m",
        module,
        *arguments,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **more}
    # In its own session: an interrupt from the terminal reaches only this process, which then ends all others.
    launcher = subprocess.Popen(
        command,
        # If this process is killed, its end of the pipe closes and the launcher ends itself.
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env=environment | {PARENT_PIPE: "1"},
        start_new_session=True,
    )
    try:
        return _wait(launcher, timeout_s, progress)
    finally:
        _end(launcher)
        assert launcher.stdin is not None
        launcher.stdin.close()


def _wait(
    launcher: subprocess.Popen[bytes], timeout_s: float | None, progress: Callable[[], bool] | None
) -> int | None:
    """Exit status; None at the timeout."""
    if timeout_s is None:
        return launcher.wait()
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            return launcher.wait(max(0.0, min(left_s, _SECONDS_BETWEEN_LOOKS) if progress else left_s))
        except subprocess.TimeoutExpired:
            if progress is not None and progress():
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() >= deadline:
                return None


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher and, through it, its workers."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()


def _error_lines(output: str) -> str:
    """The distinct error lines of the workers, without tracebacks."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [found["error"] for line in lines if (found := _ERROR_LINE.match(line))]
    # Workers that lost a peer report that too; the first failure is the cause.
    causes = [error for error in errors if "by peer" not in error]
    causes = causes or [line for line in lines if _ENDED_LINE.match(line)] or lines
    return " | ".join(dict.fromkeys(causes[-_LAST_LINES:]))[:500] or "no output"
