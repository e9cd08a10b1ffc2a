"""Timing one bench through the profiler."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernelcast.collector.benches import BENCHES, Bench, Place, Point
from kernelcast.collector.measuring import harness
from kernelcast.collector.measuring.harness import (
    Effort,
    TraceClock,
    is_settled,
    is_stable,
    measure,
    profiled,
    stored_kernels,
)
from kernelcast.collector.traces.attribution import attribute
from kernelcast.collector.traces.events import Events
from kernelcast.collector.traces.kineto import Trace
from kernelcast.runtime import DataError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Repetition

F, B, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
DX, DW = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT


# Large enough that the product takes most of the time.
LARGE = {"gemm": (128, 128, 384), "gelu": (2, 64, 512), "flash_attention": (2, 64, 4, 4, 32)}


def built(operator: str, place: Place) -> Bench:
    return BENCHES[operator](Point(operator=operator, vector=LARGE[operator]), place)


class CountingBench:
    """A bench that counts what is done with it."""

    def __init__(self) -> None:
        self.forwards = 0
        self.weight = torch.ones(64, 64, requires_grad=True)

    def bench(self) -> Bench:
        def forward() -> torch.Tensor:
            self.forwards += 1
            return self.weight @ self.weight

        return Bench(forward, [self.weight])


def test_ten_warm_up_and_ten_measured_iterations(cpu: Place) -> None:
    bench = CountingBench()
    found = measure(
        bench.bench(), cpu, (F, B), Effort(most_in_block=10, most_blocks=1, most_warm_up_seconds=60)
    )
    assert bench.forwards == 1 + 10 + 10  # one to know the outputs' sizes
    assert [r.index for r in found[F]] == [r.index for r in found[B]] == list(range(10))


def test_blocks_are_added_until_it_is_stable(cpu: Place) -> None:
    never = measure(
        CountingBench().bench(), cpu, (F,), Effort(most_in_block=10, most_blocks=3, stable_within=-1.0)
    )
    assert [r.index for r in never[F]] == list(range(30))
    at_once = measure(
        CountingBench().bench(),
        cpu,
        (F,),
        Effort(most_in_block=10, most_blocks=3, stable_within=1e9, most_spread=1e9),
    )
    assert len(at_once[F]) == 10
    out_of_time = measure(
        CountingBench().bench(),
        cpu,
        (F,),
        Effort(most_in_block=10, most_blocks=3, stable_within=-1.0, most_seconds=0),
    )
    assert len(out_of_time[F]) == 10


@pytest.mark.parametrize("name", LARGE)
def test_repetitions_hold_their_kernels(name: str, cpu: Place, quick: Effort) -> None:
    directions = OPERATORS[name].directions
    found = measure(built(name, cpu), cpu, directions, quick)
    assert tuple(found) == directions
    for repetitions in found.values():
        assert len(repetitions) == 10
        for repetition in repetitions:
            kernels = repetition.kernels
            assert kernels
            assert min(kernel.start_us for kernel in kernels) >= 0
            ends = [kernel.start_us + kernel.duration_us for kernel in kernels]
            assert max(ends) <= repetition.time_us + 0.01
            # One thread: kernels follow each other.
            assert sum(kernel.duration_us for kernel in kernels) < 1.001 * repetition.time_us + 0.01
        # Undisturbed, there is little but dispatch between them.
        assert (
            max(sum(kernel.duration_us for kernel in one.kernels) / one.time_us for one in repetitions) > 0.2
        )


def test_a_linear_has_a_product_in_each_of_its_directions(cpu: Place, quick: Effort) -> None:
    found = measure(built("gemm", cpu), cpu, (F, DX, DW), quick)
    for direction, added in ((F, 0), (DX, 0), (DW, 1)):
        for repetition in found[direction]:
            names = [kernel.name for kernel in repetition.kernels]
            assert names.count("aten::mm") == 1
            assert names.count("aten::add_") == added  # accumulates into the existing gradient
    both = measure(built("gemm", cpu), cpu, (F, B), quick)
    for repetition in both[B]:
        assert [kernel.name for kernel in repetition.kernels].count("aten::mm") == 2


def test_starts_are_on_one_clock(cpu: Place) -> None:
    found = measure(
        built("gelu", cpu), cpu, (F, B), Effort(most_in_block=10, most_blocks=2, stable_within=-1.0)
    )
    assert found[F][0].start_us == 0
    timeline = sorted((r.start_us, r.time_us, direction) for direction in (F, B) for r in found[direction])
    # Forward and backward alternate, over both traces, and do not overlap.
    assert [direction for _, _, direction in timeline] == [F, B] * 20
    for (start, time_us, _), (following, _, _) in pairwise(timeline):
        assert start + time_us <= following


def test_an_optimizer_step_is_measured_once(cpu: Place, quick: Effort) -> None:
    bench = BENCHES["adam"](Point(operator="adam", role="last_stage", vector=(9999, 2)), cpu)
    found = measure(bench, cpu, (ONCE,), quick)
    assert list(found) == [ONCE]
    assert any("adam" in kernel.name.lower() for kernel in found[ONCE][0].kernels)


def test_the_shortest_operators_have_a_time(cpu: Place, quick: Effort) -> None:
    # Their kernels are shorter than the profiler's resolution.
    smallest = {"causal_mask_fill": (1, 2, 4, 4), "residual_add": (1, 4, 8), "softmax": (1, 2, 4, 4)}
    for name, vector in smallest.items():
        bench = BENCHES[name](Point(operator=name, vector=vector), cpu)
        found = measure(bench, cpu, (F, B), quick)
        assert [len(repetitions) for repetitions in found.values()] == [10, 10]
        assert all(r.kernels and r.time_us > 0 for repetitions in found.values() for r in repetitions)


def test_a_bench_that_runs_nothing_is_an_error(cpu: Place, quick: Effort) -> None:
    with pytest.raises(DataError, match="trace holds 0 marked once repetitions with kernels, expected 10"):
        measure(Bench(lambda: ()), cpu, (ONCE,), quick)


def test_short_operators_repeat_more_often_in_the_same_time() -> None:
    effort = Effort(most_in_block=20)
    assert [effort.block_size(s) for s in (0.0, 1e-5, 1.25e-3, 1.0, float("inf"))] == [20, 20, 16, 10, 10]


def test_a_wide_first_block_asks_for_another() -> None:
    wide, narrow = times([10.0, 10.0, 10.0, 90.0, 90.0] * 2), times([10.0] * 10)
    effort = Effort(most_spread=0.25)
    assert is_settled(narrow, effort, first=True)
    assert not is_settled(wide, effort, first=True)
    assert is_settled(wide, effort, first=False)  # its quiet time is the same in both halves


def times(values: Sequence[float]) -> list[Repetition]:
    return [Repetition(index=index, time_us=value) for index, value in enumerate(values)]


def test_stable_means_that_the_halves_agree_on_the_quiet_time() -> None:
    assert is_stable(times([10.0, 90.0, 10.0, 30.0, 10.0, 10.0, 10.1, 50.0, 80.0, 10.0]), 0.02)
    assert not is_stable(times([10.0] * 5 + [11.0] * 5), 0.02)
    assert is_stable(times([10.0] * 5 + [11.0] * 5), 0.11)


def test_clock_counts_from_the_first_work_it_sees() -> None:
    early = Trace(events=Events(), device_properties=(), distributed={}, base_time_ns=1_000_000)
    late = replace(early, base_time_ns=3_000_000)
    clock = TraceClock()
    assert clock.since_first_us(early, 50.0) == 0
    assert clock.since_first_us(early, 60.5) == 10.5
    assert clock.since_first_us(late, 50.0) == 2000


def test_profiled_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    x = torch.ones(100, 100)

    def work() -> None:
        with torch.profiler.record_function("kernelcast.test"):
            torch.mm(x, x)

    (found,) = attribute(profiled(torch.device("cpu"), work), "kernelcast.")
    assert "aten::mm" in [kernel.name for kernel in stored_kernels(found)]
    with pytest.raises(ZeroDivisionError):
        profiled(torch.device("cpu"), lambda: print(1 / 0))
    assert list(tmp_path.iterdir()) == []


def test_the_last_two_warm_up_iterations_have_the_measured_cache_state(
    cpu: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the time for them is over: then the last one alone."""
    for take_s, expected in ((0.04, [0] * 8 + [1] * 2), (0.11, [0] * 5 + [1]), (9.0, [0, 1])):
        now, said = [0.0], list[int]()

        def iterate(
            *given: object, take_s: float = take_s, now: list[float] = now, said: list[int] = said
        ) -> None:
            said.append(int(given[4] is not None))
            now[0] += take_s

        def block(
            bench: Bench,
            place: Place,
            state: object,
            found: object,
            clock: object,
            size: int,
            said: list[int] = said,
        ) -> None:
            said.append(size)
            raise KeyboardInterrupt

        monkeypatch.setattr(harness, "iterate", iterate)
        monkeypatch.setattr(harness, "_one_block", block)
        monkeypatch.setattr(harness, "time", SimpleNamespace(monotonic=lambda now=now: now[0]))
        with pytest.raises(KeyboardInterrupt):
            measure(CountingBench().bench(), cpu, (F,), Effort())
        assert said == [*expected, 10]
