"""Companion processes: operators are measured under the concurrency of a real job.

Processes of one node share its memory bus, caches and power, so that an operator takes longer while others run.
A companion runs the same point with as many threads on other cores, as another rank does.
"""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.measuring.companion_worker import READY, STOP, companion
from kernelcast.collector.measuring.core_binding import own_cores
from kernelcast.runtime.errors import UsageError

_ANSWER_SECONDS = 300.0
"""To import torch, build an operator and warm up; to end an iteration."""
_END_SECONDS = 5.0


class CompanionError(Exception):
    """A companion did not run the operator the whole time, for a `reason`; the message is stored with the sample."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"companion process: {reason}")
        self.reason = reason


def check_processes(processes: int, place: Place, *, threads: int) -> None:
    """Check that `processes` processes can measure here at once.

    Raises:
        UsageError: there are fewer devices, or fewer cores for their threads.
    """
    if processes < 1:
        raise UsageError(f"processes per node: found {processes}, expected 1 or more")
    if processes == 1:
        return
    if place.device.type == "cuda":
        there = torch.cuda.device_count()
        if processes > there:
            raise UsageError(
                f"processes per node: found {processes}, expected at most {there}, the GPUs here"
            )
    elif processes * threads > (cores := available_cores()):
        raise UsageError(
            f"processes per node: found {processes} with {threads} thread(s) each, expected at most {cores} threads, "
            "the cores here"
        )


class Companions:
    """`processes` − 1 companions of this process, started when first needed; close it, or use it in a with statement.

    The k-th one runs on GPU k, or on the CPU with `threads` threads. The program must be importable
    (`if __name__ == "__main__":`): processes are started anew rather than forked, which torch's threads would not
    survive.
    """

    def __init__(self, processes: int, place: Place, *, threads: int, seed: int) -> None:
        check_processes(processes, place, threads=threads)
        self.processes = processes
        on_cpu = place.device.type == "cpu"
        self._settings = [
            (
                _place_of(number, place),
                own_cores(number, processes, threads=threads) if on_cpu else (),
                threads,
                seed + number,
            )
            for number in range(1, processes)
        ]
        self._started: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def running(self, point: Point) -> Iterator[None]:
        """Run `point` in every companion meanwhile.

        Raises:
            CompanionError: one of them cannot, or stopped before the end; what the block raises goes first.
        """
        if self.processes == 1:
            yield
            return
        self._begin(point)
        try:
            yield
        except Exception:
            self._stop()
            raise
        except BaseException:
            # Interrupted: nobody waits for anybody.
            self.close()
            raise
        if reason := self._stop():
            raise CompanionError(reason)

    def close(self) -> None:
        """End all companions."""
        for process, connection in self._started:
            connection.close()
            process.kill()  # it holds nothing that could be left half-done
        for process, _ in self._started:
            process.join()
        self._started = []

    def _start(self) -> None:
        if len(self._started) == len(self._settings):
            return
        self.close()
        context = multiprocessing.get_context("spawn")
        for settings in self._settings:
            ours, theirs = context.Pipe()
            process = context.Process(target=companion, args=(theirs, *settings), daemon=True)
            process.start()
            # Only the companion may hold its end: else its death would go unnoticed.
            theirs.close()
            self._started.append((process, ours))

    def _begin(self, point: Point) -> None:
        """Start `point` everywhere, and wait until it runs."""
        self._start()
        answers = self._ask(point)
        if reason := next((answer for answer in answers if answer != READY), ""):
            self._stop()
            raise CompanionError(reason)

    def _stop(self) -> str:
        """Stop what runs; the first reason why one did not run until now, empty where all did."""
        try:
            return next(filter(None, self._ask(STOP)), "")
        except CompanionError as error:
            return error.reason

    def _ask(self, message: object) -> list[str]:
        """What every companion answers. Where one does not, all are ended, and the next point finds fresh ones."""
        for _, connection in self._started:
            _tell(connection, message)
        try:
            return [_answer(process, connection) for process, connection in self._started]
        except BaseException:
            self.close()
            raise


def _place_of(number: int, place: Place) -> Place:
    if place.device.type == "cpu":
        return place
    first = place.device.index or 0
    return Place(torch.device("cuda", (first + number) % torch.cuda.device_count()), place.dtype)


def _tell(connection: Connection, message: object) -> None:
    try:
        connection.send(message)
    except OSError:
        # It has ended; waiting for its answer says how.
        return


def _answer(process: BaseProcess, connection: Connection) -> str:
    """The next message.

    Raises:
        CompanionError: the process has ended, or does not answer.
    """
    try:
        if connection.poll(_ANSWER_SECONDS):
            return str(connection.recv())
    except (EOFError, OSError):
        process.join(_END_SECONDS)
        raise CompanionError(f"ended, {how_it_ended(process.exitcode)}") from None
    raise CompanionError(f"no answer within {_ANSWER_SECONDS:g} s")


def how_it_ended(exit_code: int | None) -> str:
    """Signal or exit code of a process that ended."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    # SIGKILL is what a system that runs out of memory sends.
    return f"signal {-exit_code}" + (" (out of memory?)" if exit_code == -9 else "")
