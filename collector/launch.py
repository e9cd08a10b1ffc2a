"""Starts worker processes of this package under torchrun on this node, and ends them."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from kernelcast.runtime.errors import DataError

_LAST_LINES = 3
# `[rank0]: ValueError: …` at the start of a line is the end of a worker's traceback.
_ERROR_LINE = re.compile(r"(\[rank\d+\]: )?(?P<error>[\w.]*(Error|Exception): \S.*)")

# torchrun puts every worker into a session of its own and, told to end, kills after 30 s those that do not obey.
_GRACE_S = 40


def run_workers(
    module: str, arguments: Sequence[str], *, processes: int, threads: int, timeout_s: float
) -> None:
    """Run `python -m MODULE ARGUMENTS` in `processes` processes under torchrun; each computes with `threads` threads.

    Raises:
        DataError: a worker failed (its last words are quoted) or the timeout ran out; all of them are ended.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        status = _launch(module, arguments, processes, threads, timeout_s, output)
        if status is None:
            raise DataError(f"{module}: no result after {timeout_s:g} s on {processes} process(es)")
        if status != 0:
            output.seek(0)
            raise DataError(
                f"{module}: exit status {status} on {processes} process(es): {_last_words(output.read())}"
            )


def show_workers(module: str, arguments: Sequence[str], *, processes: int, threads: int) -> int:
    """Like `run_workers`, without a timeout and with output and errors shown as they come; answers the exit status."""
    status = _launch(module, arguments, processes, threads, None, None)
    return 1 if status is None else status


def _launch(
    module: str,
    arguments: Sequence[str],
    processes: int,
    threads: int,
    timeout_s: float | None,
    output: IO[str] | None,
) -> int | None:
    """Exit status of torchrun, None when the timeout ran out."""
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
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # In a session of its own: an interrupt from the terminal comes to this process alone, which then ends all others.
    launcher = subprocess.Popen(
        command,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        return launcher.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(launcher)


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher and, through it, every worker that it started."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()


def _last_words(output: str) -> str:
    """The workers' own error lines, each once, without the frames of their tracebacks."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [found["error"] for line in lines if (found := _ERROR_LINE.match(line))]
    # A worker that lost another says so too; the one that failed first says why.
    causes = [error for error in errors if "by peer" not in error] or lines
    return " | ".join(dict.fromkeys(causes[-_LAST_LINES:]))[:500] or "no output"
