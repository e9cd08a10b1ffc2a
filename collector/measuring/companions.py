"""Companion processes: operators are measured under the concurrency of a real job.

Processes of one node share its memory bus, caches and power, so an operator takes longer while others run. A companion
runs the same point with the same number of threads on other cores, as another rank does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.measuring.companion_worker import READY, STOP, companion
from kernelcast.collector.measuring.core_binding import own_cores
from kernelcast.collector.measuring.helper_process import Closeable, CompanionError, HelperProcess
from kernelcast.runtime.errors import UsageError

_NAME = "companion process"


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
        gpus = torch.cuda.device_count()
        if processes > gpus:
            raise UsageError(f"processes per node: found {processes}, expected at most {gpus}, the GPUs here")
    elif processes * threads > (cores := available_cores()):
        raise UsageError(
            f"processes per node: found {processes} with {threads} thread(s) each, expected at most {cores} threads, "
            "the cores here"
        )


class Companions(Closeable):
    """`processes` − 1 companions of this process, started when first needed; close it, or use it in a with statement.

    The k-th one runs on GPU k, or on the CPU with `threads` threads.
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
        self._started: list[HelperProcess] = []

    @contextmanager
    def running(self, point: Point) -> Iterator[None]:
        """Run `point` in every companion during the block.

        Raises:
            CompanionError: one of them cannot, or stopped early; an error of the block itself takes precedence.
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
            # Interrupted: the companions' results are not awaited.
            self.close()
            raise
        if reason := self._stop():
            raise CompanionError(_NAME, reason)

    def close(self) -> None:
        """End all companions."""
        for process in self._started:
            process.close()
        self._started = []

    def _begin(self, point: Point) -> None:
        """Start `point` in every companion, and wait until it runs."""
        if len(self._started) < len(self._settings):
            self.close()
            self._started = [HelperProcess(_NAME, companion, *settings) for settings in self._settings]
        if reason := next((answer for answer in self._ask(point) if answer != READY), ""):
            self._stop()
            raise CompanionError(_NAME, reason)

    def _stop(self) -> str:
        """Stop the point; the first reason why a companion did not run until now, empty where all did."""
        try:
            return next(filter(None, self._ask(STOP)), "")
        except CompanionError as error:
            return error.reason

    def _ask(self, message: object) -> list[str]:
        """Every companion's answer. If one does not answer, all are ended, and the next point starts new ones."""
        for process in self._started:
            process.tell(message)
        try:
            return [process.answer() for process in self._started]
        except BaseException:
            self.close()
            raise


def _place_of(number: int, place: Place) -> Place:
    if place.device.type == "cpu":
        return place
    first = place.device.index or 0
    return Place(torch.device("cuda", (first + number) % torch.cuda.device_count()), place.dtype)


_NAME = "companion process"
