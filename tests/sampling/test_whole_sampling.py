"""Costs, previews and collections within a budget, whole: whole_sampling.txt, which WRITE_WHOLE_SAMPLING=1 writes.

Operators take made-up times on a clock by hand; rates and memory are made up too. Errors of fits have two digits.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelcast.collector.benches import Place
from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime import DataError
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.sampling import collect, cost, design, preview
from kernelcast.sampling.chooser import Chooser
from kernelcast.sampling.cost import Times, cost_of_measuring
from tests.sampling.test_chooser import COST, Machine

TEXT = Path(__file__).with_name("whole_sampling.txt")
TINY = Path(__file__).parent.parent / "data" / "plans" / "tiny.toml"
CPU = Place(torch.device("cpu"), torch.float32)
ASKED = {
    "gelu": [(2, 8, 64), (4, 4096, 4096)],
    "gemm": [(64, 64, 64), (8192, 4096, 2048)],
    "adam": [(10**6, 1), (10**9, 2)],
}


def costs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(cost, "_rates", lambda place: (2e12, 3e11))
    monkeypatch.setattr(cost, "_overhead_s", lambda place: 0.5)
    known = {(1, 8, 2**n): 5.0 + 2**n / 10 for n in range(3, 13)}
    times: Times = {
        ("gelu", Direction.FORWARD): known,
        ("gelu", Direction.BACKWARD): {vector: 2 * time for vector, time in list(known.items())[:8]},
        ("adam", Direction.ONCE): {(2**n, 1): 1.0 + n for n in range(7)},
    }
    for given, load in ((times, Load.BURST), ({}, Load.SUSTAINED)):
        found = cost_of_measuring(CPU, given, load=load)
        yield f"{found.source}; {found.overhead_s} {found.element_bytes} {dict(found.added_s)}"
        yield f"  {[(name, str(direction)) for name, direction in found.fitted]}"
        for name, vectors in ASKED.items():
            yield f"  {name} {[f'{one:.6g}' for one in found.seconds(OPERATORS[name], vectors)]}"


def of_collection(machine: Machine, settings: Settings, plan: Any) -> Any:
    def measure(database: Any, run: Any, points: Any, on_measured: Callable[..., None]) -> None:
        for point in points:
            on_measured(point, machine.measure(point))

    return SimpleNamespace(
        plan=plan, settings=settings, place=CPU, load=Load.SUSTAINED if settings.load else Load.BURST, measure=measure,
        run=lambda level=1: level, keys=None,
    )  # fmt: skip


def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    plan = load_plan(str(TINY))
    known: Times = {("softmax", d): {(2, 4, 8, 8): 3.0} for d in OPERATORS["softmax"].directions}
    monkeypatch.setattr(collect, "cost_of_measuring", lambda place, times, load: COST)
    for operators, memory_bytes, budget_s, target in (
        (("gelu", "layer_norm"), 2**40, 9.5, 0.0), (("layer_norm", "softmax"), 2**40, 90.5, 0.9),
        (("gelu", "layer_norm"), 2**15, 50.5, 0.0), (("gelu",), 1, 9.5, 0.0),
    ):  # fmt: skip
        yield f"{operators} {memory_bytes} {budget_s} {target}"
        said: list[str] = []
        yield from _collected(
            monkeypatch, plan, operators, memory_bytes, said, known, budget_s=budget_s, target=target
        )


def _collected(
    monkeypatch: pytest.MonkeyPatch, plan: Any, operators: tuple[str, ...], memory_bytes: int, said: list[str],
    known: Times, **more: float,
) -> Iterator[str]:  # fmt: skip
    machine, settings = Machine(noise=0.2), Settings(device="cpu", operators=operators)
    machine.now = 100.0
    monkeypatch.setattr(collect, "Collection", lambda plan, settings: of_collection(machine, settings, plan))
    monkeypatch.setattr(collect, "Chooser", partial(Chooser, clock=machine.clock))
    monkeypatch.setattr(collect, "stored_times", lambda database, run, dtype, load: known)
    monkeypatch.setattr(collect, "device_memory_bytes", lambda device: memory_bytes)

    def progress(one: collect.BudgetProgress) -> None:
        errors = f"{_short(one.error)} {_short(one.mean_error)}"
        said.append(f"{one.elapsed_s:g} of {one.budget_s:g} {one.operator} {errors}")

    try:
        found = collect.collect_within(
            None, plan, settings, **more, on_progress=progress,  # type: ignore[arg-type]
            on_short=lambda needed_s: said.append(f"needs {needed_s:.4g}"),
            on_too_large=lambda names, size: said.append(f"too large {names} {size}"),
        )  # fmt: skip
    except DataError as error:
        yield f"  {error}"
        return
    yield from (f"  {one}" for one in said)
    errors = [(name, _short(error), count) for name, error, count in found.errors]
    yield f"  {found.collected} {errors} {_short(found.mean_error)} {found.elapsed_s:g}"


def _short(error: float | None) -> str:
    return "-" if error is None else f"{error:.2f}"


def previews(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    plan = load_plan(str(TINY))
    monkeypatch.setattr(preview, "cost_of_measuring", lambda place, times, prior, load: COST)
    for more, memory in (({}, 2**40), ({"processes": (1, 2), "load": Load.SUSTAINED}, 2**16)):
        settings = Settings(device="cpu", operators=("gelu", "gemm", "adam"), **more)
        monkeypatch.setattr(
            preview, "Collection", lambda *given, own=settings: of_collection(Machine(), own, plan)
        )
        monkeypatch.setattr(preview, "device_memory_bytes", lambda device, size=memory: size)
        monkeypatch.setattr(
            preview, "what_to_measure", lambda plan, settings: compute_points(plan, settings.operators)
        )
        for asked in (0, 2**14):
            found = preview.preview(plan, settings, memory_bytes=asked).to_dict()
            rows = found.pop("operators")
            yield str(found)
            yield from (f"  {row}" for row in rows)


def everything(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(design, "_COMPUTE", design._COMPUTE[2:4])  # stumps alone
    lines = [*costs(monkeypatch), *collections(monkeypatch), *previews(monkeypatch)]
    return "\n".join(lines) + "\n"


def test_whole_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    found = everything(monkeypatch)
    if "WRITE_WHOLE_SAMPLING" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
