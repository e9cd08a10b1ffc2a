"""Measures points that are chosen one by one, from what was measured before: `collect compute --budget`."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.compute import Collected
from kernelcast.collector.interrupts import interrupts_held, terminations_interrupt
from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.host_memory import keep_freed_memory
from kernelcast.collector.measuring.measurer import Measurer
from kernelcast.runtime.hardware.load import Load
from kernelcast.store import Database, Run, Sample


class Chooser(Protocol):
    """What says which point is next, and is told what came of it."""

    already_there: int
    """Points that it knew at first, and does not ask for."""

    def next(self) -> Point | None:
        """The next point; None ends the collection."""

    def tell(self, point: Point, samples: Sequence[Sample]) -> None:
        """The samples of the point handed out last."""


def collect_chosen(
    database: Database,
    chooser: Chooser,
    run: Run,
    keys: Fingerprints,
    place: Place,
    *,
    dtype: str,
    threads: int = 1,
    seed: int = 0,
    load: Load = Load.BURST,
    effort: Effort | None = None,
    on_progress: Callable[[Point], None] = lambda point: None,
) -> Collected:
    """Measure what the chooser asks for until it ends; each sample is stored before the next point is asked for."""
    if place.device.type == "cpu":
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    collected = Collected(already_there=chooser.already_there)
    point = chooser.next()
    if point is None:
        return collected
    run_id = database.add_run(run, keys.compute, None, keys.software)
    with (
        terminations_interrupt(),
        Measurer(place, dtype=dtype, threads=threads, seed=seed, effort=effort, load=load) as measurer,
    ):
        while point is not None:
            with interrupts_held():
                samples = measurer.measure(point, run_id)
                database.add_samples(samples)
            collected.count(samples)
            chooser.tell(point, samples)
            on_progress(point)
            point = chooser.next()
    return collected
