"""A companion process: repeats an operator while another process measures the same one.

It gets a `Point` over a pipe, answers `READY` when the operator runs, and continues until `STOP`. It ends when the
other end of the pipe closes, for whatever reason.
"""

from itertools import cycle
from multiprocessing.connection import Connection

import torch

from kernelcast.collector.benches import BENCHES, Bench, Place, Point
from kernelcast.collector.measuring.core_binding import bind
from kernelcast.collector.measuring.harness import iterate
from kernelcast.collector.measuring.helper_process import ignore_signals
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.outcome import Untimed

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
    """Copies of the operator with their own tensors: on a CPU it finds them in memory, as in a step.

    A companion whose tensors stay in its cache would not contend for memory with the process that measures.
    """
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
