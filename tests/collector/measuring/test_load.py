"""Load around the measured passes: what is done before, between and after them, and what is read meanwhile."""

import os
import signal
import time
from multiprocessing import active_children

import pytest
import torch

from kernelcast.collector.benches import BENCHES, Place, Point
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.machine.sensors import Reading
from kernelcast.collector.measuring import core_binding
from kernelcast.collector.measuring.core_binding import other_cores, own_cores
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.collector.measuring.helper_process import BusyCores, CompanionError
from kernelcast.collector.measuring.load import BLOCK_SECONDS, BurstLoad, SustainedLoad, sustained_seconds
from kernelcast.collector.measuring.measurer import Measurer
from kernelcast.runtime.hardware.devices import Load, loads_in_words
from kernelcast.runtime.operators import Direction
from kernelcast.store import Status

GELU = Point(operator="gelu", vector=(3, 10, 56))
needs_two_cores = pytest.mark.skipif(available_cores() < 2, reason="one core: no other is left")


class Counting:
    """Sensors whose clock is the number of readings before."""

    def __init__(self) -> None:
        self.count = 0

    def read(self) -> Reading:
        self.count += 1
        return Reading(clock_mhz=float(self.count))


@pytest.mark.parametrize("load", ["burst", "sustained"])
def test_every_block_is_read_once_at_its_end(load: str, cpu: Place, quick: Effort) -> None:
    sensors = Counting()
    made = (
        BurstLoad(cpu.device, sensors)
        if load == "burst"
        else SustainedLoad(cpu.device, cpu.dtype, sensors, block_seconds=0.001)
    )
    bench = BENCHES["gelu"](GELU, cpu)
    found = measure(bench, cpu, (Direction.FORWARD,), quick, made)
    assert len(found[Direction.FORWARD]) == 10
    # One block: read before it, so that power counts from there, and after it.
    assert made.reading() == Reading(clock_mhz=2.0)
    assert made.reading() == Reading()


def test_products_last_as_long_as_they_are_asked_to(cpu: Place) -> None:
    load = SustainedLoad(cpu.device, cpu.dtype)
    began = time.monotonic()
    load.keep_for(0.05)
    assert time.monotonic() - began >= 0.05


def test_products_are_no_part_of_what_is_measured(cpu: Place, quick: Effort) -> None:
    load = SustainedLoad(cpu.device, cpu.dtype, block_seconds=0.02)
    bench = BENCHES["gelu"](GELU, cpu)
    [*repetitions] = measure(bench, cpu, (Direction.FORWARD,), quick, load)[Direction.FORWARD]
    names = {kernel.name for one in repetitions for kernel in one.kernels}
    assert not any("mm" in name for name in names)


class Moments:
    """A clock whose every look takes a millisecond, and the products and waits that were begun."""

    def __init__(self, load: SustainedLoad, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.products, self.said = 0.0, 0, list[str]()
        monkeypatch.setattr(time, "monotonic", self.monotonic)
        monkeypatch.setattr(load, "_product", self.product)
        monkeypatch.setattr(torch.cuda, "Event", lambda: self)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.said.append(f"idle {cycles}"))

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def product(self) -> None:
        self.products += 1
        self.now_s += 0.003

    def record(self) -> None:
        self.said.append(f"record {self.products}")

    def synchronize(self) -> None:
        self.said.append("wait")


def test_a_gpu_has_products_queued_before_every_pass(cpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = Counting()
    load = SustainedLoad(cpu.device, cpu.dtype, sensors, block_seconds=0.014, pass_seconds=0.02)
    burst = BurstLoad(torch.device("cuda"))
    monkeypatch.setattr(load, "_device", torch.device("cuda"))
    moments = Moments(load, monkeypatch)
    load.before_block()
    # Until 15 ms, products and looks take 4 ms each; two are ahead of the device, the last one is waited for.
    assert moments.said == ["record 1", "record 2", "record 3", "wait", "record 4", "wait", "wait"]
    assert (moments.products, sensors.count) == (4, 1)
    load.before_pass()
    assert moments.products == 4 + 5  # 20 ms of 17 / 4 ms each
    load.keep_host_ahead()
    load.after_block()
    assert (moments.products, sensors.count) == (4 + 5 + 5, 2)
    assert load.reading().clock_mhz == 2
    moments.said.clear()
    burst.keep_host_ahead()
    assert moments.said == ["idle 500000"]
    BurstLoad(cpu.device).keep_host_ahead()
    assert moments.said == ["idle 500000"]


def test_one_product_at_least(cpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    load = SustainedLoad(cpu.device, cpu.dtype)
    moments = Moments(load, monkeypatch)
    load.keep_for(0)
    assert (moments.products, moments.said) == (1, [])
    load.before_pass()
    assert moments.products == 1


def test_what_sustained_load_adds() -> None:
    assert sustained_seconds(torch.device("cpu"), blocks=2, passes=90) == 2 * BLOCK_SECONDS
    assert sustained_seconds(torch.device("cuda"), blocks=2, passes=90) == 2 * BLOCK_SECONDS + 1.8


def test_other_cores_are_those_that_no_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four cores of two hardware threads: 0 and 4 are one core, and so on.
    monkeypatch.setattr(core_binding.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(core_binding, "available_cores", lambda: 8)
    monkeypatch.setattr(core_binding, "_place", lambda cpu: (cpu % 4, cpu // 4))
    assert own_cores(0, 1, threads=1) == (0,)
    assert other_cores(1, threads=1) == ((1,), (2,), (3,))
    assert other_cores(2, threads=1) == ((2,), (3,))
    assert other_cores(4, threads=2) == ()
    # A quota of six cores of eight: nothing is bound, so six threads compute in all.
    monkeypatch.setattr(core_binding, "available_cores", lambda: 6)
    assert other_cores(2, threads=2) == ((), ())


@needs_two_cores
@pytest.mark.slow
def test_other_cores_compute_until_they_are_let_go() -> None:
    with BusyCores([()]) as busy:
        (process,) = active_children()
        busy.check()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with pytest.raises(CompanionError, match=r"^process on the other cores: ended, signal 9"):
            busy.check()
        busy.check()  # a new one
        assert len(active_children()) == 1
    assert not active_children()


@needs_two_cores
@pytest.mark.slow
def test_samples_state_their_load(cpu: Place, quick: Effort) -> None:
    options = {"dtype": "float32", "threads": 1, "seed": 1, "effort": quick}
    with Measurer(cpu, **options) as measurer:  # type: ignore[arg-type]
        assert {one.load for one in measurer.measure(GELU, "r")} == {Load.BURST}
        assert not active_children()
    with Measurer(cpu, **options, load=Load.SUSTAINED) as measurer:  # type: ignore[arg-type]
        assert len(active_children()) == 1
        samples = measurer.measure(GELU, "r")
        assert {(one.status, one.load) for one in samples} == {(Status.OK, Load.SUSTAINED)}
    assert not active_children()


def test_loads_in_words() -> None:
    assert loads_in_words([]) == "none"
    assert loads_in_words([Load.BURST, Load.NOT_STATED, Load.BURST]) == "2 burst, 1 not stated"
