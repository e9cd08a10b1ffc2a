"""Collections of drawn times between threads: drawn_collections.txt, which WRITE_DRAWN_COLLECTIONS=1 writes again.

What a collective takes, who is interrupted and what the machine shows are drawn; the loop, its counts, what it stores
and what it says are real.
"""

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelcast.collector.communication import comm
from kernelcast.collector.communication.comm import collect_comm, what_to_exchange
from kernelcast.collector.communication.peers import LostPeersError
from kernelcast.collector.communication.timing import CommPoint
from kernelcast.collector.communication.world import World
from kernelcast.collector.machine.probe import Fingerprints, probe
from kernelcast.collector.measuring.outcome import Untimed
from kernelcast.collector.plans.plan_ranges import CollectiveRange, Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store import Database, Kernel, Repetition, Status

TEXT = Path(__file__).with_name("drawn_collections.txt")
SIZE = 4
COLLECTIVES = tuple(op.name for op in OPERATORS.values() if op.is_collective and not op.is_on_request)


class Exchange:
    """What threads say to each other; without one that failed, the others wait no longer."""

    def __init__(self) -> None:
        self.told, self.boxes = threading.Condition(), defaultdict[int, dict[int, Any]](dict)
        self.is_over = self.is_interrupted = False

    def of(self, rank: int) -> "Thread":
        numbers = count()

        def gather(value: Any) -> list[Any]:
            with self.told:
                box = self.boxes[next(numbers)]
                box[rank] = value
                self.told.notify_all()
                self.told.wait_for(lambda: len(box) == SIZE or self.is_over)
            if len(box) < SIZE:
                raise LostPeersError("gone")
            return [box[one] for one in range(SIZE)]

        return Thread(World(rank=rank, local_rank=rank, size=SIZE, local_size=SIZE), gather, self)

    def end(self) -> None:
        with self.told:
            self.is_over = True
            self.told.notify_all()


class Thread:
    """Stands for collector/communication/peers.py's `Peers`."""

    def __init__(self, world: World, gather: Callable[[Any], list[Any]], exchange: Exchange) -> None:
        self.world, self.gather, self.exchange = world, gather, exchange

    def from_first(self, value: Any) -> Any:
        return self.gather(value)[0]

    @property
    def interrupted(self) -> bool:
        return self.exchange.is_interrupted and self.world.rank == 1


def drawn_time(seed: str) -> list[Repetition]:
    """Repetitions that are calm, stalled, drifting, or none."""
    drawn = Random(seed)
    kind = drawn.choice(["calm"] * 4 + ["stalled"] * 3 + ["drifting", "failed", "unsupported"])
    if kind in ("failed", "unsupported"):
        raise Untimed(Status(kind), f"a reason {drawn.randrange(9)}")
    level, count = 10 ** drawn.uniform(2.5, 4), drawn.choice([10, 20])
    factors: dict[str, Callable[[int], float]] = {
        "calm": lambda n: 1.0,
        "stalled": lambda n: 8.0 * (n % 2) + 1,
        "drifting": lambda n: 1 + n // 10,
    }
    times = [round(level * factors[kind](n) * drawn.uniform(1, 1.02), 2) for n in range(count)]
    kernels = (Kernel(name="gloo", stream=0, start_us=0.0, duration_us=1.0),)
    return [
        Repetition(index=n, time_us=time, start_us=1e5 * n, kernels=kernels) for n, time in enumerate(times)
    ]


class Watch:
    """A machine whose reference product takes longer from look to look."""

    broken = -1

    def __init__(self, place: Any) -> None:
        self.looks = 0
        if local.world.rank == self.broken:
            raise MemoryError("no room for it")

    def with_best(self) -> "Watch":
        self.looks = 100
        return self

    def look(self) -> Any:
        self.looks += 1
        return SimpleNamespace(reference_us=float(self.looks))

    def flags(self, before: Any, after: Any) -> tuple[tuple[str, str], ...]:
        number, rank = int(after.reference_us), local.world.rank
        return (("disturbed", f"by rank {rank}"),) if number % 7 == rank else ()


local: Any = threading.local()


def collected(
    monkeypatch: pytest.MonkeyPatch, path: Path, plan: Plan, settings: Settings, keys: Fingerprints,
    *, seed: int, layouts: str = "", interrupted_at: int = -1, **more: Any,
) -> Iterator[str]:  # fmt: skip
    """What every rank says and gets, what was told to the user, and what is stored."""
    exchange, said, attempts = Exchange(), list[str](), Counter[tuple[int, CommPoint]]()

    def time_point(point: CommPoint, peers: Thread, dtype: torch.dtype, effort: Any) -> list[Repetition]:
        rank = peers.world.rank
        attempts[rank, point] += 1
        attempt = attempts[rank, point]
        exchange.is_interrupted = sum(n for (one, _), n in attempts.items() if one == rank) == interrupted_at
        return drawn_time(f"{seed} {point.operator} {point.vector} {attempt}")

    @contextmanager
    def joined(world: World, device: torch.device, *, timeout_s: float, watchdog: Any) -> Iterator[Thread]:
        yield exchange.of(world.rank)

    def watchdog(timeout_s: float, *, local_rank: int, silent: bool) -> Any:
        said.append(f"rank {local_rank} waits {timeout_s:g} s{', silent' if silent else ''}")
        return nullcontext()

    for name, value in {
        "time_point": time_point, "joined": joined, "Watchdog": watchdog, "Watch": Watch, "bind": said.append,
        "probe": lambda device, threads, processes: said.append(f"{threads=} {processes=}") or keys,
        "own_cores": lambda number, processes, threads: f"core of {number} of {processes}, {threads=}",
        "keep_freed_memory": lambda: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(comm, name, value)
    monkeypatch.setattr(World, "from_launcher", staticmethod(lambda: local.world))

    def on_rank(rank: int) -> str:
        local.world = World(rank=rank, local_rank=rank, size=SIZE, local_size=SIZE)
        try:
            return str(
                collect_comm(
                    lambda: Database.open(path, create=True),
                    plan,
                    settings,
                    layout_names=layouts,
                    on_progress=lambda *now: said.append(" ".join(map(str, now))),
                    **more,
                )
            )
        except (DataError, KeyboardInterrupt) as error:
            return f"{type(error).__name__} {error}".replace(str(path.parent), "HERE")
        finally:
            exchange.end()

    with ThreadPoolExecutor(SIZE) as threads:
        yield from dict.fromkeys(threads.map(on_rank, range(SIZE)))
    told = [one for one in said if one[0].isdigit()]
    yield "; ".join(sorted({one for one in said if not one[0].isdigit()}))
    yield " | ".join(told)


def stored(path: Path) -> Iterator[str]:
    with Database.open(path, read_only=True) as database:
        runs = {run.id: run for run in database.run_list()}
        assert len({run.started_at for run in runs.values()}) == len({run.plan for run in runs.values()})
        for one in database.samples_in_full():
            run = runs[one.run_id]
            times = f"{len(one.repetitions)} of {one.time_us}, {one.quiet_us}, reference {one.reference_us}"
            flags = ", ".join(f"{name} ({detail})" for name, detail in one.flags)
            yield (
                f"{one.operator} {one.vector} {one.direction} {one.dtype} {one.status} {one.reason} {times}"
                f" [{flags}] {run.command} {run.plan} {run.site} {dict(run.conditions)} {run.fabric_id is None}"
            )


def points(plan: Plan) -> Iterator[str]:
    """What is exchanged, of several plans and layouts."""
    ranges = {"reduce_scatter": (CollectiveRange(entries=(12, 13, 4001), processes=(2, 4)),),
              "all_to_all": (CollectiveRange(entries=(64,), processes=(4,)),)}  # fmt: skip
    plans = [plan, replace(plan, messages=None, collectives=ranges), replace(plan, collectives=ranges)]
    for number, one in enumerate(plans):
        for nodes, local_size in ((1, 2), (1, 4), (2, 2), (1, 3), (1, 2048)):
            world = World(rank=0, local_rank=0, size=nodes * local_size, local_size=local_size)
            for layouts in ("", "tp2", "1x4, dp2"):
                for dtype in ("float32", "bfloat16"):
                    try:
                        _, found = what_to_exchange(one, world, Settings(device="cpu", dtype=dtype), layouts)
                        said = " ".join(f"{each.operator}{each.vector}" for each in found)
                    except UsageError as error:
                        said = str(error)
                    yield f"plan {number}, {nodes}x{local_size}, {layouts!r}, {dtype}: {said}".replace(
                        " ()", ""
                    )


def everything(monkeypatch: pytest.MonkeyPatch, folder: Path, plan: Plan) -> str:
    keys = probe(torch.device("cpu"), threads=1, processes=SIZE)
    lines = list(points(plan))
    settings = Settings(device="cpu", site="here", threads=2)
    for seed in range(3):
        path, named = folder / f"{seed}.db", replace(plan, name=f"plan {seed}")
        monkeypatch.setenv("KERNELCAST_ONE_VOICE", "1" if seed else "")
        lines += collected(monkeypatch, path, named, settings, keys, seed=seed, interrupted_at=seed * 9 or -1)
        lines += sorted(stored(path))
        for again, layouts in (("no", "1x4"), ("flagged", ""), ("all", "tp2")):
            other = replace(settings, again=again, operators=COLLECTIVES[: seed + 2])  # type: ignore[arg-type]
            lines += [f"again: {again} {layouts}"]
            lines += collected(
                monkeypatch, path, named, other, keys, seed=seed + 10, layouts=layouts, timeout_s=7.5
            )
    monkeypatch.setattr(Watch, "broken", 2)
    lines += collected(monkeypatch, folder / "x.db", plan, settings, keys, seed=1)
    lines += collected(monkeypatch, folder / "none" / "x.db", plan, settings, keys, seed=1)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_collections_of_drawn_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan) -> None:
    found = everything(monkeypatch, tmp_path, plan)
    if "WRITE_DRAWN_COLLECTIONS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
