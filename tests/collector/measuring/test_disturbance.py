"""What disturbs a measurement is noticed, stored as a flag, and measured again on request."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelcast.collector import compute
from kernelcast.collector.benches import Place
from kernelcast.collector.compute import collect_compute
from kernelcast.collector.machine import probe_gpu
from kernelcast.collector.measuring import disturbance
from kernelcast.collector.measuring.disturbance import Reference, Watch
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.outcome import Flag, unstable
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.settings import Settings
from kernelcast.store import Database, Repetition


class Steady(Reference):
    """A reference whose times the test says."""

    def __init__(self, *times_us: float) -> None:
        self.times, self.best_us = list(times_us), float("inf")

    def time_us(self) -> float:
        time_us = self.times.pop(0)
        self.best_us = min(self.best_us, time_us)
        return time_us


def stat(folder: Path, monkeypatch: pytest.MonkeyPatch, stolen: int) -> None:
    """Linux's times of two cores, `stolen` ticks of it steal time."""
    (folder / "stat").write_text(
        f"cpu  10 0 10 900 0 0 0 {stolen} 0 0\ncpu0 5 0 5 450 0 0 0 0\ncpu1 5 0 5 450\n"
    )
    monkeypatch.setattr(disturbance, "_STAT", folder / "stat")
    monkeypatch.setattr(disturbance, "cpu_count", lambda: 2)


def flags_of(watch: Watch, seconds: float = 1.0) -> dict[str, str]:
    before, after = watch.look(), watch.look()
    return dict(watch.flags(before, replace(after, seconds=before.seconds + seconds)))


def test_nothing_disturbs_a_quiet_machine(cpu: Place) -> None:
    assert flags_of(Watch(cpu, Steady(100, 110))) == {}


def test_a_slower_reference_is_a_disturbance(cpu: Place) -> None:
    reference = Steady(100, 160, 160)
    reference.time_us()
    assert flags_of(Watch(cpu, reference)) == {"disturbed": "the reference product took 1.60 times its best"}


def test_stolen_time_is_a_disturbance(cpu: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat(tmp_path, monkeypatch, 100)
    watch = Watch(cpu, Steady(100, 100, 100, 100))
    before = watch.look()
    stat(tmp_path, monkeypatch, 120)
    after = replace(watch.look(), seconds=before.seconds + 1)
    # A fifth of a second of two cores' one.
    assert dict(watch.flags(before, after)) == {
        "disturbed": "other machines on this host took 10% of the cores"
    }
    # One tick says nothing of a short measurement.
    assert dict(watch.flags(replace(before, stolen_seconds=1.19), after)) == {}


def test_a_system_that_counts_no_stolen_time(
    cpu: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disturbance, "_STAT", tmp_path / "stat")
    assert Watch(cpu, Steady(100)).look().stolen_seconds == 0
    for text in ("", "cpu 1 2 3\n"):
        (tmp_path / "stat").write_text(text)
        assert Watch(cpu, Steady(100)).look().stolen_seconds == 0


@pytest.mark.parametrize(
    ("reference_us", "stolen_s", "words"),
    [
        (125.0, 0.0, []),
        (126.0, 0.0, ["the reference product took 1.26 times its best"]),
        (100.0, 0.06, []),  # exactly 3 %
        (100.0, 0.0625, ["other machines on this host took 3% of the cores"]),
        (
            200.0,
            2.0,
            [
                "the reference product took 2.00 times its best",
                "other machines on this host took 100% of the cores",
            ],
        ),
    ],
)
def test_from_when_on_it_is_a_disturbance(
    cpu: Place, monkeypatch: pytest.MonkeyPatch, reference_us: float, stolen_s: float, words: list[str]
) -> None:
    monkeypatch.setattr(disturbance, "cpu_count", lambda: 2)
    watch = Watch(cpu, Steady(100))
    before = replace(watch.look(), seconds=5.0, stolen_seconds=0.0, reference_us=reference_us)
    after = replace(before, seconds=6.0, stolen_seconds=stolen_s)
    assert dict(watch.flags(before, after)) == ({"disturbed": "; ".join(words)} if words else {})
    assert (
        disturbance.mean_reference_us(before, replace(after, reference_us=300.0)) == (reference_us + 300) / 2
    )


def test_a_moment_too_short_to_steal_from(cpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "cpu_count", lambda: 2)
    watch = Watch(cpu, Steady(100))
    before = replace(watch.look(), seconds=5.0, stolen_seconds=0.0)
    assert watch.flags(before, replace(before, seconds=5.5, stolen_seconds=0.04)) == ()
    assert watch.flags(before, replace(before, seconds=5.5, stolen_seconds=0.05)) != ()
    assert watch.flags(before, before) == ()


def test_a_reference_is_the_median_of_seven_products(cpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [3.0, 1.0, 2.0, 9.0, 8.0, 7.0, 4.0]
    looks = iter([second for end in ends for second in (10.0, 10.0 + end)])
    monkeypatch.setattr(disturbance.time, "perf_counter", lambda: next(looks))
    reference = Reference(cpu.device, cpu.dtype)
    assert reference.time_us() == reference.best_us == 4e6
    assert next(looks, None) is None
    looks = iter([0.0, 5.0] * 7)
    assert (reference.time_us(), reference.best_us) == (5e6, 4e6)


class FakeGpu:
    """What a driver would say."""

    def __init__(self, bits: int, count: int) -> None:
        self.bits, self.count = bits, count

    def clock_reasons(self) -> int:
        return self.bits

    def processes(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("bits", "count", "expected"),
    [
        (0, 1, {}),
        (0x1, 0, {}),  # an idle GPU lowers its clocks; the driver does not count processes
        (0x40 | 0x8, 1, {"throttled": "hardware slowdown, hardware thermal slowdown"}),
        (0x4, 1, {"power capped": "the power limit holds the clocks back"}),
        (0, 3, {"shared device": "2 other process(es) on the GPU"}),
    ],
)
def test_what_a_gpu_says(bits: int, count: int, expected: dict[str, str], cpu: Place) -> None:
    watch = Watch(cpu, Steady(100, 100))
    watch._gpu = FakeGpu(bits, count)  # type: ignore[assignment]
    assert flags_of(watch) == expected


def test_no_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(probe_gpu.ctypes, "CDLL", missing)
    assert probe_gpu.Gpu.find(torch.device("cuda")) is None


def test_halves_that_disagree_are_unstable() -> None:
    def times(*values: float) -> list[Repetition]:
        return [Repetition(index=index, time_us=value) for index, value in enumerate(values)]

    effort = Effort(flagged_beyond=0.05)
    assert unstable(times(*[10.0] * 10), effort) == ()
    ((flag, detail),) = unstable(times(*[10.0] * 5, *[11.0] * 5), effort)
    assert (flag, detail) == ("unstable", "quiet times of the halves of 10 repetitions are 10.0% apart")


def test_flagged_points_alone_are_measured_again(
    tmp_path: Path, plan: Plan, quick: Effort, monkeypatch: pytest.MonkeyPatch
) -> None:
    gelu = Settings(operators=("gelu",), device="cpu", effort=replace(quick, flagged_beyond=-1.0))
    steady = replace(gelu, effort=replace(quick, flagged_beyond=1e9))
    both = replace(steady, operators=("gelu", "rope"), again="flagged")
    with Database.open(tmp_path / "bench.db", create=True) as database:
        collect_compute(database, plan, gelu)
        collect_compute(database, plan, replace(steady, operators=("rope",)))
        flagged = [s for s in database.samples_in_full() if s.flags]
        assert {s.operator for s in flagged} >= {"gelu"}
        assert all(flag in compute.WORTH_AGAIN for s in flagged for flag, _ in s.flags)
        monkeypatch.setattr(disturbance, "_MOST_SLOWED", 1e9)  # other tests run in parallel
        again = collect_compute(database, plan, both)
        assert again.measured >= 2
        # What was sound, and what has become so, stays.
        rest = collect_compute(database, plan, both)
        assert (rest.measured, rest.already_there) == (0, 4)


def test_a_power_limit_is_not_worth_another_try() -> None:
    assert Flag.POWER_CAPPED not in disturbance.WORTH_AGAIN
