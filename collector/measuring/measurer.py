"""Measures points one by one and returns their samples, whether or not an operator or the machine fails."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from kernelcast.collector.benches import BENCHES, Place, Point
from kernelcast.collector.machine.probe_cpu import available_memory_bytes
from kernelcast.collector.machine.sensors import sensors_of
from kernelcast.collector.measuring.companions import Companions
from kernelcast.collector.measuring.core_binding import bound, other_cores, own_cores
from kernelcast.collector.measuring.disturbance import Watch, mean_reference_us
from kernelcast.collector.measuring.harness import Effort, measure, warm_up
from kernelcast.collector.measuring.helper_process import BusyCores, Closeable, CompanionError
from kernelcast.collector.measuring.load import BurstLoad, SustainedLoad
from kernelcast.collector.measuring.outcome import Flags, Outcome, Untimed, sample_of
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store import Sample, Status, utc_now


def point_bytes(point: Point, element_bytes: int) -> int:
    """Upper estimate of the memory for measuring a point, in bytes: all tensors, once per pass that uses them."""
    op = point.law
    if op.per_update:
        # In place: all tensors are read, all but the gradients written. In 16 bit each has a float32 copy.
        elements = (op.moved_bytes(op.directions[0], point.vector, 1) + point.vector[0]) / 2
        return int(elements * (element_bytes if element_bytes >= 4 else element_bytes + 4))
    return int(sum(op.moved_bytes(direction, point.vector, element_bytes) for direction in op.directions))


def memory_of_each_bytes(device: torch.device, processes: int) -> int:
    """Memory for each of `processes` processes of a node: shared on a CPU, separate on GPUs."""
    return device_memory_bytes(device) // (processes if device.type == "cpu" else 1)


def device_memory_bytes(device: torch.device) -> int:
    """Memory of a GPU, or the available memory of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return available_memory_bytes()


class Measurer(Closeable):
    """Measures points on one place while `processes` − 1 companions run; close it, or use it in a with statement.

    Before the first point of an operator, ten iterations of its largest shape among `points` warm up. Points whose
    tensors need more memory than each process has here are never built: where a CPU's memory is short, the system would
    end this process without a message.

    Under sustained `load` (load.py) the device computes for `effort.settle_seconds` before the first point, and all
    cores of a CPU until it is closed. Errors as `check_processes`.
    """

    def __init__(
        self,
        place: Place,
        *,
        dtype: str,
        threads: int,
        seed: int,
        processes: int = 1,
        effort: Effort | None = None,
        points: Iterable[Point] = (),
        load: Load = Load.BURST,
    ) -> None:
        self._place, self._dtype = place, dtype
        self._effort = effort or Effort()
        self._companions = Companions(processes, place, threads=threads, seed=seed)
        on_cpu = place.device.type == "cpu"
        self._cores = own_cores(0, processes, threads=threads) if on_cpu else ()
        sensors = sensors_of(place.device, self._cores)
        self._load = (
            SustainedLoad(place.device, place.dtype, sensors, block_seconds=self._effort.block_settle_seconds)
            if load.is_sustained
            else BurstLoad(place.device, sensors)
        )
        is_alone = not (on_cpu and load.is_sustained)
        self._busy_cores = BusyCores(() if is_alone else other_cores(processes, threads=threads))
        self._memory_bytes = memory_of_each_bytes(place.device, processes)
        self._cold = _largest(point for point in points if not self._lacks_memory(point))
        with bound(self._cores):  # also binds the threads that torch starts with the first product
            self._watch = Watch(place)
            self._settle()
            self._watch.with_best()

    def close(self) -> None:
        """End the companions and the busy cores."""
        self._companions.close()
        self._busy_cores.close()

    def _settle(self) -> None:
        """Compute until the clocks of sustained load are reached."""
        if isinstance(self._load, SustainedLoad):
            try:
                self._busy_cores.check()
            except CompanionError:
                return  # the first point is stored with the reason
            try:
                self._load.keep_for(self._effort.settle_seconds)
            except BaseException:
                self._busy_cores.close()
                raise

    def measure(self, point: Point, run_id: str) -> list[Sample]:
        """A sample per direction, with times or a reason; errors of an operator are not raised."""
        with bound(self._cores):
            return self._measure(point, run_id)

    def _measure(self, point: Point, run_id: str) -> list[Sample]:
        if lack := self._lacks_memory(point):
            return self._untimed(point, run_id, Untimed(Status.FAILED, lack), utc_now())
        self._warm_up(point.operator)
        measured_at, before = utc_now(), self._watch.look()
        self._load.reading()  # clears the readings of a point that failed
        try:
            self._busy_cores.check()
            bench = BENCHES[point.operator](point, self._place)  # raises before a companion is started
            with self._companions.running(point):
                repetitions = measure(bench, self._place, point.law.directions, self._effort, self._load)
            self._busy_cores.check()
        except Exception as error:
            # Whatever a kernel raises, the run continues and the reason is stored with the sample.
            return self._untimed(point, run_id, Untimed.of(error), measured_at)
        after, reading = self._watch.look(), self._load.reading()
        return self._samples(
            point,
            run_id,
            repetitions,
            self._watch.flags(before, after),
            reference_us=mean_reference_us(before, after),
            measured_at=measured_at,
            clock_mhz=reading.clock_mhz,
            power_w=reading.power_w,
            temperature_c=reading.temperature_c,
        )

    def _untimed(self, point: Point, run_id: str, reason: Untimed, measured_at: str) -> list[Sample]:
        return self._samples(
            point, run_id, dict.fromkeys(point.law.directions, reason), measured_at=measured_at
        )

    def _samples(
        self,
        point: Point,
        run_id: str,
        outcomes: Mapping[Direction, Outcome],
        flags: Flags = (),
        **details: Any,
    ) -> list[Sample]:
        return [
            sample_of(
                outcome,
                self._effort,
                flags,
                run_id=run_id,
                operator=point.operator,
                role=point.role,
                direction=direction,
                dtype=self._dtype,
                vector=point.vector,
                load=self._load.kind,
                **details,
            )
            for direction, outcome in outcomes.items()
        ]

    def _lacks_memory(self, point: Point) -> str:
        """Why a point is not built; empty where its memory suffices."""
        needed = point_bytes(point, self._place.dtype.itemsize)
        if needed <= self._memory_bytes:
            return ""
        there = self._memory_bytes / 2**30
        return f"out of memory: its tensors need up to {needed / 2**30:.1f} GiB, each process has {there:.1f} GiB here"

    def _warm_up(self, operator: str) -> None:
        point = self._cold.pop(operator, None)
        if point is None:
            return
        try:
            warm_up(BENCHES[operator](point, self._place), self._place, point.law.directions)
        except Exception:
            # Measuring the same point stores the reason.
            return


def _largest(points: Iterable[Point]) -> dict[str, Point]:
    """The point of every operator that moves the most bytes."""
    found: dict[str, tuple[float, Point]] = {}
    for point in points:
        moved = point.law.moved_bytes(point.law.directions[0], point.vector, 1)
        if point.operator not in found or moved > found[point.operator][0]:
            found[point.operator] = moved, point
    return {name: point for name, (_, point) in found.items()}
