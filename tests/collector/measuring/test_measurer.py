"""What measures a point, in which order and with what: measured_points.txt, which WRITE_MEASURED_POINTS=1 writes.

Cores, companions, loads, sensors and the machine's states are by hand; nothing is timed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.machine.sensors import Reading
from kernelcast.collector.measuring import measurer as module
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.helper_process import CompanionError
from kernelcast.collector.measuring.measurer import Measurer
from kernelcast.collector.measuring.outcome import Untimed
from kernelcast.runtime.hardware.devices import Load
from kernelcast.store import Kernel, Repetition, Sample

TEXT = Path(__file__).with_name("measured_points.txt")
POINTS = {
    "gelu": Point(operator="gelu", role="", vector=(1, 10, 20)),
    "larger": Point(operator="gelu", role="", vector=(1, 10, 30)),
    "gemm": Point(operator="gemm", role="qkv", vector=(8, 16, 24)),
    "adam": Point(operator="adam", role="", vector=(1000, 1)),
    "too large": Point(operator="gelu", role="", vector=(1, 10_000, 20_000)),
}
ASKED: list[dict[str, Any]] = [
    {}, {"processes": 3, "threads": 2}, {"load": Load.SUSTAINED, "processes": 2}, {"device": "cuda", "processes": 2},
    {"device": "cuda", "load": Load.SUSTAINED}, {"load": Load.SUSTAINED, "busy": "fails"},
    {"warm": "fails", "measured": "fails"}, {"measured": "unsupported"}, {"load": Load.SUSTAINED, "kept": "fails"},
    {"processes": 2, "companions": "fails"}, {"dtype": torch.bfloat16},
]  # fmt: skip


def fake(monkeypatch: pytest.MonkeyPatch, said: list[str], fails: dict[str, Any]) -> None:
    def failing(what: str) -> None:
        said.append(what)
        if what in fails:
            raise {
                "fails": CompanionError("a companion", what),
                "unsupported": NotImplementedError("none here"),
            }[fails[what]]

    @contextmanager
    def bound(cores: Any) -> Iterator[None]:
        said.append(f"bound to {cores}")
        yield
        said.append("free")

    @contextmanager
    def running(point: Point) -> Iterator[None]:
        failing("companions")
        yield
        said.append("companions stop")

    def closed(name: str, *given: object, **more: object) -> Any:
        said.append(f"{name} {given} {more}")
        return SimpleNamespace(
            close=lambda: said.append(f"{name} closed"), running=running, check=lambda: failing("busy")
        )

    def watch(place: Place) -> Any:
        looks = iter(range(1, 100))
        own = SimpleNamespace(
            look=lambda: SimpleNamespace(reference_us=float(next(looks))),
            flags=lambda before, after: (
                ("disturbed", f"{before.reference_us:g} to {after.reference_us:g}"),
            ),
            with_best=lambda: said.append("best"),
        )
        said.append("watch")
        return own

    def loaded(kind: Load, name: str) -> type:
        class Made:
            def __init__(self, *given: Any, **more: Any) -> None:
                self.kind = kind
                said.append(f"{name} {given[0].type} {given[1:]} {more}")

            def keep_for(self, seconds: float) -> None:
                failing("kept")
                said.append(f"for {seconds:g} s")

            def reading(self) -> Reading:
                said.append("reading")
                return Reading(clock_mhz=1000.0, power_w=50.0, temperature_c=40.0)

        return Made

    def measure(bench: str, place: Place, directions: Any, effort: Effort, load: Any) -> Any:
        failing("measured")
        said.append(f"{bench} {list(map(str, directions))} {effort.most_blocks} {load.kind}")
        kernels = (Kernel(name="one", stream=0, start_us=0.0, duration_us=1.0),)
        times = [
            Repetition(index=n, time_us=10.0 + n % 5, start_us=100.0 * n, kernels=kernels) for n in range(10)
        ]
        return dict.fromkeys(directions, times)

    def warm_up(bench: str, place: Place, directions: Any) -> None:
        failing("warm")
        said.append(f"warm up {bench} {list(map(str, directions))}")

    for name, value in {
        "own_cores": lambda number, processes, threads: (number, processes, threads),
        "other_cores": lambda processes, threads: ("others", processes, threads),
        "sensors_of": lambda device, cores: f"sensors of {device.type} {cores}",
        "bound": bound, "Watch": watch, "measure": measure, "warm_up": warm_up,
        "Companions": lambda *given, **more: closed("companions", given[0], given[1].device.type, **more),
        "BusyCores": lambda cores: closed("busy cores", cores),
        "BurstLoad": loaded(Load.BURST, "burst"), "SustainedLoad": loaded(Load.SUSTAINED, "sustained"),
        "available_memory_bytes": lambda: 9_000_000, "utc_now": lambda: "2026-01-02T03:04:05Z",
        "BENCHES": dict.fromkeys(POINTS, lambda point, place: f"bench {point.vector} {place.dtype}"),
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, value)
    memory = SimpleNamespace(total_memory=8_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)


def told(sample: Sample) -> str:
    flags = [f"{name}: {detail}" for name, detail in sample.flags]
    return (
        f"  {sample.operator} {sample.role} {sample.direction} {sample.dtype} {sample.vector} {sample.load} "
        f"{sample.status} {sample.reason} {sample.time_us} {sample.quiet_us} {sample.reference_us} {sample.clock_mhz} "
        f"{sample.power_w} {sample.temperature_c} {sample.measured_at} {sample.run_id} {flags}"
    )


def everything(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for asked in ASKED:
        said: list[str] = []
        own = {name: asked[name] for name in ("processes", "load") if name in asked}
        place = Place(torch.device(asked.get("device", "cpu")), asked.get("dtype", torch.float32))
        with monkeypatch.context() as patched:
            fake(patched, said, asked)
            yield str(asked)
            try:
                measurer = Measurer(
                    place, dtype="float64", threads=asked.get("threads", 1), seed=7, points=POINTS.values(),
                    effort=Effort(most_blocks=3, settle_seconds=4.0, block_settle_seconds=0.25), **own,
                )  # fmt: skip
            except CompanionError as error:
                yield f"  {'; '.join(said)}; {error}"
                continue
            yield f"  {'; '.join(said)}"
            said.clear()
            for point in POINTS.values():
                try:
                    samples = measurer.measure(point, "a run")
                except Untimed as error:
                    yield f"  {error}"
                    continue
                yield f"  {'; '.join(said)}"
                yield from map(told, samples)
                said.clear()
            measurer.close()
            yield f"  {'; '.join(said)}"


def test_points_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "\n".join(line.rstrip() for line in everything(monkeypatch)) + "\n"
    if "WRITE_MEASURED_POINTS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")


def test_memory_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Callable[..., Any] = module.memory_of_each_bytes
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 100)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=70))
    assert [memory(torch.device(name), 3) for name in ("cpu", "cuda")] == [33, 70]
