"""A companion process: runs an operator over and over while another process measures the same one.

It is told over a pipe what to run (a `Point`), answers `READY` when it runs, and goes on until it is told to stop. It
ends when the other end of the pipe does, whatever that process died of.
"""

import signal
from itertools import cycle
from multiprocessing.connection import Connection

import torch

from kernelcast.collector.benches import BENCHES, Bench, Place, Point
from kernelcast.collector.measuring.core_binding import bind
from kernelcast.collector.measuring.harness import iterate
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.verdict import verdict

READY = "ready"
STOP = "stop"
_WARM_UP_ITERATIONS = 10
_MOST_COPIES = 16
"""Small operators stay within the cache; they move little in any case."""
_BESIDE_THE_CACHE_BYTES = 48 << 20


def companion(connection: Connection, place: Place, cores: tuple[int, ...], threads: int, seed: int) -> None:
    """Run the points that come until the pipe ends.

    Two answers to each: READY, or why it cannot run; and after STOP "", or why it did not run until then.
    """
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job; the one that measures says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
        reason = verdict(error)[1] or "no reason given"
    connection.send(reason or READY)
    try:
        while not reason and not connection.poll():
            iterate(next(benches), place, point.law.directions, None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        reason = verdict(error)[1] or "no reason given"
    connection.recv()  # STOP
    connection.send(reason)


def _warm(point: Point, place: Place) -> list[Bench]:
    """The operator with tensors of its own several times over: on a CPU it finds them in memory, as in a step.

    One that found all of them in its cache would leave the memory to the process that measures.
    """
    benches = [_prepared(point, place)]
    for _ in range(_WARM_UP_ITERATIONS):
        iterate(benches[0], place, point.law.directions, None)
    if place.device.type == "cpu":
        copies = min(_MOST_COPIES, -(-_BESIDE_THE_CACHE_BYTES // max(1, _size_bytes(benches[0]))))
        benches += [_prepared(point, place) for _ in range(copies - 1)]
    return benches


def _prepared(point: Point, place: Place) -> Bench:
    bench = BENCHES[point.operator](point, place)
    bench.prepare()
    return bench


def _size_bytes(bench: Bench) -> int:
    """Of inputs, parameters and the outputs' gradients, and as much again for what is made of them."""
    tensors = (*bench.activations, *bench.parameters, *bench.output_gradients)
    return 2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
