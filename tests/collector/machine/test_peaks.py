"""Peak rates from products and copies that take made-up times on a clock by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelcast.collector.machine import peaks


@pytest.mark.parametrize(("device", "threads"), [("cpu", [3, 8]), ("cuda", [8])])
def test_the_best_of_sides_until_one_takes_long(
    monkeypatch: pytest.MonkeyPatch, device: str, threads: list[int]
) -> None:
    now, said = [0.0], list[Any]()

    def takes(time_s: float) -> None:
        now[0] += time_s * (5 if said[-1:] == ["made"] else 1)  # the first run warms up
        said.append(time_s)

    def made(*size: int, dtype: Any = None, device: Any = None) -> Any:
        said.append("made")
        found = SimpleNamespace(side=size[0], copy_=lambda source: takes(0.25))
        found.to = lambda dtype: found
        return found

    monkeypatch.setattr(peaks, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    chosen: list[int] = []
    fake = SimpleNamespace(
        randn=made, zeros=made, empty_like=lambda one: made(one.side),
        mm=lambda a, b, out: takes(5e-6 + a.side**3 / 1e12),
        get_num_threads=lambda: 8, set_num_threads=chosen.append, uint8=torch.uint8, float32="float32",
        float16="float16", bfloat16="bfloat16", float64="float64",
        cuda=SimpleNamespace(synchronize=lambda device: now.__setitem__(0, now[0] + 1e-6)),
    )  # fmt: skip
    monkeypatch.setattr(peaks, "torch", fake)
    found = peaks.measure_peaks(torch.device(device), threads=3)
    assert chosen == threads
    wait_s = 1e-6 if device == "cuda" else 0.0
    sides = [side for side in peaks._SIDES if side**3 / 1e12 < 0.01]
    tried = peaks._SIDES[: len(sides) + 1]
    best = max(2 * side**3 / (5e-6 + side**3 / 1e12 + wait_s) for side in tried)
    assert set(found.flops_per_s) == set(peaks._DTYPES)
    assert list(found.flops_per_s.values()) == pytest.approx([best] * len(peaks._DTYPES))
    assert found.memory_bytes_per_s == pytest.approx(2 * peaks._COPIED_BYTES / (0.25 + wait_s))
    # Four products at least of each side, and as many copies.
    assert said.count(0.25) == 4
    largest = 5e-6 + tried[-1] ** 3 / 1e12
    assert said.count(largest) == len(peaks._DTYPES) * max(4, 1 + 1 + int(0.2 // (largest + wait_s)))
