"""Starts worker processes of this package under torchrun on this node, and brings their result home."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from kernelcast.runtime.errors import DataError

_LAST_LINES = 3


def run_workers(
    module: str, arguments: Sequence[str], *, processes: int, threads: int, timeout_s: float
) -> None:
    """Run `python -m MODULE ARGUMENTS` in `processes` processes under torchrun; each computes with `threads` threads.

    Raises:
        DataError: a worker failed (its last words are quoted) or the timeout ran out; all of them are ended.
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "-m",
        module,
        *arguments,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile("w+") as output:
        worker = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            status = worker.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DataError(
                f"{module}: no result after {timeout_s:.0f} s on {processes} process(es)"
            ) from None
        finally:
            _end(worker)
        if status != 0:
            output.seek(0)
            raise DataError(
                f"{module}: exit status {status} on {processes} process(es): {_last_words(output.read())}"
            )


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End the launcher and every worker that it started: they share its session."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGTERM)
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _last_words(output: str) -> str:
    """The workers' own error line, without the launcher's frames."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [
        line
        for line in lines
        if "Error" in line and not line.startswith(("File", "raise", "torch.distributed"))
    ]
    return " | ".join((errors or lines)[-_LAST_LINES:])[:500] or "no output"
