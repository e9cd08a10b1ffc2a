"""Times one bench from the kernels in the profiler's trace, not from a clock around the call.

10 warm-up iterations, then blocks of 10 (long operators) to 20 (short ones) measured iterations. On shared machines
blocks are added until the quiet time (10th percentile) is stable (docs/method.md, Measuring).
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from kernelcast.collector.benches import Bench, Place
from kernelcast.collector.measuring.cache_state import CacheState
from kernelcast.collector.measuring.load import BLOCK_SECONDS, FIRST_SECONDS, BurstLoad
from kernelcast.collector.traces.arguments import arguments_of, whole
from kernelcast.collector.traces.attribution import Work, attribute
from kernelcast.collector.traces.kineto import Trace, read_trace
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Kernel, Repetition, quiet_us, spread

MARK = "kernelcast."
BLOCK = 10
_BLOCK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits on one measurement.

    Iterations come in blocks of ten; operators below a millisecond get up to `most_in_block`. After the first block, a
    spread above `most_spread` (10th to 90th percentile over the median) requires another one, whatever the quiet time;
    then blocks are added until the quiet time is stable, or a bound is reached. If it is not stable within
    `flagged_beyond` by then, the sample is flagged. Warm-up stops after `most_warm_up_seconds`. Under sustained load
    the device computes for `settle_seconds` before the first measurement, and for `block_settle_seconds` before each
    block (load.py).
    """

    warm_up_iterations: int = 10
    most_blocks: int = 4
    most_in_block: int = 20
    stable_within: float = 0.02
    most_spread: float = 0.25
    most_seconds: float = 3.0
    flagged_beyond: float = 0.05
    most_warm_up_seconds: float = 0.5
    settle_seconds: float = FIRST_SECONDS
    block_settle_seconds: float = BLOCK_SECONDS

    def block_size(self, iteration_s: float) -> int:
        """Iterations of a block, from the seconds of one iteration."""
        if iteration_s <= 0:
            return max(BLOCK, self.most_in_block)
        return min(max(BLOCK, math.ceil(_BLOCK_SECONDS / iteration_s)), max(BLOCK, self.most_in_block))


def measure(
    bench: Bench,
    place: Place,
    directions: Sequence[Direction],
    effort: Effort,
    load: BurstLoad | None = None,
) -> Mapping[Direction, list[Repetition]]:
    """Time a newly built bench under a `load` (none: a burst); repetitions in µs, per direction."""
    bench.prepare()
    caches, load = CacheState(place.device), load or BurstLoad(place.device)
    began = started = now = time.monotonic()
    for left in reversed(range(effort.warm_up_iterations)):
        # Only the last two have the measured cache state: evicting the cache takes longer than most operators.
        last = left == 0 or now - began > effort.most_warm_up_seconds
        started = time.monotonic()
        settled_caches = caches if last or left == 1 else None
        iterate(bench, place, directions, None, settled_caches, load)
        now = time.monotonic()
        if last:
            break
    size = effort.block_size(now - started)
    deadline = now + effort.most_seconds
    repetitions: dict[Direction, list[Repetition]] = {direction: [] for direction in directions}
    clock = TraceClock()
    for block in range(1, effort.most_blocks + 1):
        _one_block(bench, place, (caches, load), repetitions, clock, size)
        settled = all(is_settled(r, effort, first=block == 1) for r in repetitions.values())
        if settled or time.monotonic() > deadline:
            break
    return repetitions


def warm_up(
    bench: Bench, place: Place, directions: Sequence[Direction], *, most_seconds: float = 0.5
) -> None:
    """Ten iterations of a large bench, fewer beyond `most_seconds`: clocks, allocator and libraries warm up."""
    bench.prepare()
    deadline = time.monotonic() + most_seconds
    for _ in range(BLOCK):
        iterate(bench, place, directions, None)
        if time.monotonic() > deadline:
            break


class TraceClock:
    """One time axis for several traces with different bases; it starts at the first work."""

    def __init__(self) -> None:
        self._origin: tuple[int, float] | None = None

    def since_first_us(self, trace: Trace, start_us: float) -> float:
        """µs from the first call's work to `start_us` in `trace`."""
        if self._origin is None:
            self._origin = (trace.base_time_ns, start_us)
        base_ns, first_us = self._origin
        return (trace.base_time_ns - base_ns) / 1000 + start_us - first_us


def is_settled(repetitions: Sequence[Repetition], effort: Effort, *, first: bool) -> bool:
    """Whether no further block is needed; after the `first` one a wide spread requires another."""
    if first and spread([r.time_us for r in repetitions]) > effort.most_spread:
        return False
    return is_stable(repetitions, effort.stable_within)


def is_stable(repetitions: Sequence[Repetition], within: float) -> bool:
    """Whether the first and the second half agree on the quiet time."""
    return halves_apart(repetitions) <= within


def halves_apart(repetitions: Sequence[Repetition]) -> float:
    """Difference of the quiet times of the first and the second half, as a fraction of the shorter one."""
    times = [r.time_us for r in repetitions]
    half = len(times) // 2
    first, second = quiet_us(times[:half]), quiet_us(times[half:])
    return abs(first - second) / min(first, second) if min(first, second) > 0 else math.inf


def _one_block(
    bench: Bench,
    place: Place,
    state: tuple[CacheState, BurstLoad],
    repetitions: dict[Direction, list[Repetition]],
    clock: TraceClock,
    size: int,
) -> None:
    caches, load = state

    def iterations() -> None:
        load.before_block()
        for index in range(size):
            iterate(bench, place, tuple(repetitions), index, caches, load)
        load.after_block()

    trace = profiled(place.device, iterations)
    work = attribute(trace, MARK)
    for direction, found in repetitions.items():
        own = [w for w in work if w.mark.startswith(f"{MARK}{direction}#")]
        if len(own) != size:
            raise DataError(
                f"trace holds {len(own)} marked {direction} repetitions with kernels, expected {size}"
            )
        for item in own:
            start_us, kernels = clock.since_first_us(trace, item.start_us), stored_kernels(item)
            found.append(
                Repetition(index=len(found), time_us=item.time_us, start_us=start_us, kernels=kernels)
            )


def stored_kernels(work: Work) -> tuple[Kernel, ...]:
    """The kernels of one repetition as stored, with start times relative to the repetition's."""
    return tuple(
        Kernel(
            name=kernel.name,
            start_us=kernel.start_us - work.start_us,
            duration_us=kernel.duration_us,
            stream=whole(arguments_of(kernel).stream) or 0,
        )
        for kernel in work.kernels
    )


def iterate(
    bench: Bench,
    place: Place,
    directions: Sequence[Direction],
    index: int | None,
    caches: CacheState | None = None,
    load: BurstLoad | None = None,
) -> None:
    """One iteration: forward, or the only pass, then every backward direction.

    `index` numbers the marks; None is a warm-up without marks. With `caches` and `load` every direction runs in the
    cache state and under the load of a step.
    """
    bench.reset()
    outputs: tuple[Tensor, ...] = ()
    first = Direction.ONCE if Direction.ONCE in directions else Direction.FORWARD
    for direction in (first, *(one for one in directions if one.is_backward)):
        if caches is not None and load is not None:
            load.before_pass()
            caches.as_in_a_step(bench.output_gradients if direction.is_backward else bench.activations)
            load.keep_host_ahead()
        with _mark(direction, index):
            if direction.is_backward:
                bench.backward(outputs, direction)
            else:
                outputs = bench.outputs()
            synchronise(place.device)


@contextmanager
def _mark(direction: Direction, index: int | None) -> Iterator[None]:
    if index is None:
        yield
    else:
        with record_function(f"{MARK}{direction}#{index}"):
            yield


def synchronise(device: torch.device) -> None:
    """Wait for a GPU; a CPU runs synchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profiled(device: torch.device, work: Callable[[], None]) -> Trace:
    """Run `work` under the profiler and read the trace that Kineto writes; DataError where it is not readable."""
    # Without it Kineto prints a line at every start and stop; it reads the variable at its first use.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        work()
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        try:
            return read_trace(path)
        except DataError as error:
            # Without the path, because this may be stored as a sample's reason.
            raise DataError("the profiler wrote no readable trace; is the temporary folder full?") from error
