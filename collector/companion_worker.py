"""A companion process: runs an operator over and over while another process measures the same one.

It is told over a pipe what to run (`Task`), answers `READY` when it runs, and goes on until it is told to stop. It ends
when the other end of the pipe does, whatever that process died of.
"""

import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from kernelcast.collector.benches import BENCHES, Bench, Place
from kernelcast.collector.harness import iterate
from kernelcast.collector.host_memory import keep_freed_memory
from kernelcast.collector.verdict import verdict
from kernelcast.runtime.operators import OPERATORS, Shape

READY = "ready"
STOP = "stop"
_WARM_UP_ITERATIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An operator at a shape."""

    operator: str
    shape: Shape


def companion(connection: Connection, place: Place, threads: int, seed: int) -> None:
    """Serve tasks until the pipe ends.

    Two answers to each: READY, or why it cannot run; and after STOP "", or why it did not run until then.
    """
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job; the one that measures says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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


def _serve(connection: Connection, task: Task, place: Place) -> None:
    reason = ""
    try:
        bench = _warm(task, place)
    except Exception as error:
        reason = verdict(error)[1] or "no reason given"
    connection.send(reason or READY)
    try:
        while not reason and not connection.poll():
            iterate(bench, place, OPERATORS[task.operator].directions, None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        reason = verdict(error)[1] or "no reason given"
    connection.recv()  # STOP
    connection.send(reason)


def _warm(task: Task, place: Place) -> Bench:
    bench = BENCHES[task.operator](task.shape, place)
    bench.prepare()
    for _ in range(_WARM_UP_ITERATIONS):
        iterate(bench, place, OPERATORS[task.operator].directions, None)
    return bench
