"""Measures points one by one: gives what to store of each, whatever an operator or a machine does meanwhile."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from kernelcast.collector.benches import BENCHES, Place, Point
from kernelcast.collector.machine.sensors import Reading, sensors_of
from kernelcast.collector.measuring.busy_cores import BusyCores
from kernelcast.collector.measuring.companions import CompanionError, Companions
from kernelcast.collector.measuring.core_binding import bound, other_cores, own_cores
from kernelcast.collector.measuring.disturbance import Flags, Watch, mean_reference_us, unstable
from kernelcast.collector.measuring.harness import Effort, measure, warm_up
from kernelcast.collector.measuring.load import BurstLoad, SustainedLoad
from kernelcast.collector.measuring.reference import Reference
from kernelcast.collector.measuring.verdict import verdict
from kernelcast.collector.plans.plan_memory import memory_of_each_bytes, point_bytes
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store import Repetition, Sample, Status, utc_now


class Measurer:
    """Measures points on one place while `processes` − 1 companions run; close it, or use it in a with statement.

    The first point of an operator is preceded by ten iterations on the largest of its shapes among `points`. Points
    whose tensors need more than `memory_bytes` (0: what each process has here) are never built: where a CPU's memory
    is short, the system would end this process without a message.

    Under sustained `load` (load.py) the device computes for `effort.settle_seconds` before the first point, and all
    cores of a CPU until it is closed.

    Raises:
        UsageError: more processes than devices or cores.
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
        memory_bytes: int = 0,
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
        self._memory_bytes = memory_bytes or memory_of_each_bytes(place.device, processes)
        self._cold = _largest(point for point in points if not self._lacks_memory(point))
        with bound(self._cores):  # and so are the threads that torch starts with the first product
            self._reference = Reference(place.device, place.dtype)
            self._reference.saturate()
            self._settle()
            self._watch = Watch(place, self._reference)
            for _ in range(5):  # so that the first samples have a best time to be compared with
                self._reference.time_us()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._companions.close()
        self._busy_cores.close()

    def _settle(self) -> None:
        """Work until a sustained load's clocks are reached."""
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
        """A sample per direction: times, or the reason why there are none. Raises nothing that an operator raises."""
        with bound(self._cores):
            return self._measure(point, run_id)

    def _measure(self, point: Point, run_id: str) -> list[Sample]:
        if lack := self._lacks_memory(point):
            return self._without_time(point, run_id, Status.FAILED, lack, utc_now())
        self._warm_up(point.operator)
        measured_at, before = utc_now(), self._watch.look()
        self._load.reading()  # what a point that failed left
        try:
            self._busy_cores.check()
            bench = BENCHES[point.operator](point, self._place)  # what is not supported starts no companion
            with self._companions.running(point):
                repetitions = measure(bench, self._place, point.law.directions, self._effort, self._load)
            self._busy_cores.check()
        except CompanionError as error:
            return self._without_time(point, run_id, Status.FAILED, str(error), measured_at)
        except Exception as error:
            # Whatever a kernel does, the run goes on and the reason is kept with the sample.
            return self._without_time(point, run_id, *verdict(error), measured_at)
        after = self._watch.look()
        noticed, reference_us = self._watch.flags(before, after), mean_reference_us(before, after)
        reading = self._load.reading()
        return [
            self._sample(point, run_id, direction, found, reference_us, measured_at, noticed, reading)
            for direction, found in repetitions.items()
        ]

    def _lacks_memory(self, point: Point) -> str:
        """Why a point is not built, empty where there is memory for it."""
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

    def _sample(
        self,
        point: Point,
        run_id: str,
        direction: Direction,
        repetitions: list[Repetition],
        reference_us: float,
        measured_at: str,
        noticed: Flags,
        reading: Reading,
    ) -> Sample:
        return Sample.from_repetitions(
            run_id=run_id,
            operator=point.operator,
            role=point.role,
            direction=direction,
            dtype=self._dtype,
            vector=point.vector,
            repetitions=repetitions,
            reference_us=reference_us,
            measured_at=measured_at,
            load=self._load.kind,
            clock_mhz=reading.clock_mhz,
            power_w=reading.power_w,
            temperature_c=reading.temperature_c,
            flags=(*noticed, *unstable(repetitions, self._effort)),
        )

    def _without_time(
        self, point: Point, run_id: str, status: Status, reason: str, measured_at: str
    ) -> list[Sample]:
        return [
            Sample.without_time(
                run_id=run_id,
                operator=point.operator,
                role=point.role,
                direction=direction,
                dtype=self._dtype,
                vector=point.vector,
                status=status,
                reason=reason[:500] or "no reason given",
                measured_at=measured_at,
                load=self._load.kind,
            )
            for direction in point.law.directions
        ]


def _largest(points: Iterable[Point]) -> dict[str, Point]:
    """The point of every operator that moves most."""
    found: dict[str, tuple[float, Point]] = {}
    for point in points:
        moved = point.law.moved_bytes(point.law.directions[0], point.vector, 1)
        if point.operator not in found or moved > found[point.operator][0]:
            found[point.operator] = moved, point
    return {name: point for name, (_, point) in found.items()}
