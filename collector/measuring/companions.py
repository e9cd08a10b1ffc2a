"""Companion processes: operators are measured under the concurrency of a real job.

Processes of one node share its memory bus, caches and power, so an operator takes longer while others run. A companion
runs the same point with the same number of threads on other cores, as another rank does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from multiprocessing.connection import Connection

import torch

from kernelcast.collector.benches import BENCHES, Bench, Place, Point
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.measuring.core_binding import bind, own_cores
from kernelcast.collector.measuring.harness import iterate
from kernelcast.collector.measuring.helper_process import (
    Closeable,
    CompanionError,
    HelperProcess,
    ignore_signals,
)
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.outcome import Untimed
from kernelcast.runtime.errors import UsageError

READY = "ready"
STOP = "stop"
_WARM_UP_ITERATIONS = 10
_MOST_COPIES = 16
"""Small operators stay in the cache; they move few bytes anyway."""
_COPIES_BYTES = 48 << 20


def companion(connection: Connection, place: Place, cores: tuple[int, ...], threads: int, seed: int) -> None:
    """Run the points that arrive until the pipe closes.

    Each gets two answers: READY, or why it cannot run; and after STOP "", or why it stopped early.
    """
    ignore_signals()
    bind(cores)
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    else:
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    try:
        while True:
            _serve(connection, connection.recv(), place)
    except (EOFError, OSError):
        return


def _serve(connection: Connection, point: Point, place: Place) -> None:
    reason = ""
    try:
        benches = cycle(_warm(point, place))
    except Exception as error:
        reason = Untimed.of(error).reason
    connection.send(reason or READY)
    try:
        while not reason and not connection.poll():
            iterate(next(benches), place, point.law.directions, None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        reason = Untimed.of(error).reason
    connection.recv()  # STOP
    connection.send(reason)


def _warm(point: Point, place: Place) -> list[Bench]:
    """Copies of the operator with their own tensors, too large for the companion's cache, as in a step."""
    benches = [_prepared(point, place)]
    for _ in range(_WARM_UP_ITERATIONS):
        iterate(benches[0], place, point.law.directions, None)
    if place.device.type == "cpu":
        copies = min(_MOST_COPIES, -(-_COPIES_BYTES // max(1, _size_bytes(benches[0]))))
        benches += [_prepared(point, place) for _ in range(copies - 1)]
    return benches


def _prepared(point: Point, place: Place) -> Bench:
    bench = BENCHES[point.operator](point, place)
    bench.prepare()
    return bench


def _size_bytes(bench: Bench) -> int:
    """Inputs, parameters and the outputs' gradients, times two for the results computed from them."""
    tensors = (*bench.activations, *bench.parameters, *bench.output_gradients)
    return 2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)


_NAME = "companion process"


def check_processes(processes: int, place: Place, *, threads: int) -> None:
    """Refuse more `processes` than there are devices here, or cores for their threads: a UsageError."""
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
    """`processes` − 1 companions, the k-th on GPU k or on the CPU with `threads` threads; to be closed."""

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

        CompanionError where one of them cannot, or stopped early; an error of the block itself takes precedence.
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
