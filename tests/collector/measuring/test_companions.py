"""Processes that run an operator next to the process that measures it."""

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import active_children

import pytest
import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.measuring.companions import Companions, check_processes
from kernelcast.collector.measuring.helper_process import CompanionError
from kernelcast.runtime import UsageError

GELU = Point(operator="gelu", vector=(3, 10, 56))
needs_two_cores = pytest.mark.skipif(available_cores() < 2, reason="one core: no companion fits")


@pytest.fixture(scope="module")
def companions() -> Iterator[Companions]:
    """Shared by all tests: starting one imports torch."""
    with Companions(2, Place(torch.device("cpu"), torch.float32), threads=1, seed=20) as started:
        yield started
    assert not active_children()


def processor_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    with open(f"/proc/{pid}/stat") as stat:
        cells = stat.read().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def companion_pid() -> int:
    (process,) = active_children()
    assert process.pid is not None
    return process.pid


@needs_two_cores
def test_a_companion_computes_as_long_as_it_is_asked_to(companions: Companions) -> None:
    for point in (GELU, Point(operator="gemm", vector=(30, 48, 72))):  # one process serves all points
        with companions.running(point):
            pid = companion_pid()
            wanted = processor_seconds(pid) + 0.05
            deadline = time.monotonic() + 300  # others may keep the cores busy
            while processor_seconds(pid) < wanted and time.monotonic() < deadline:
                time.sleep(0.05)
            assert processor_seconds(pid) >= wanted
    deadline = time.monotonic() + 300
    for _ in range(2):  # what it was doing ends first
        waiting, took_s = processor_seconds(pid), 1.0
        while took_s > 0.02 and time.monotonic() < deadline:
            time.sleep(0.5)
            took_s, waiting = processor_seconds(pid) - waiting, processor_seconds(pid)
        assert took_s <= 0.02


@needs_two_cores
def test_what_a_companion_cannot_run_is_said_and_the_next_point_runs(
    companions: Companions,
) -> None:
    with (
        pytest.raises(CompanionError, match=r"^companion process: no fused scale-mask-softmax kernel"),
        companions.running(Point(operator="fused_causal_softmax", vector=(6, 8, 8))),
    ):
        pass
    pid = companion_pid()
    with companions.running(GELU):
        assert companion_pid() == pid


@needs_two_cores
def test_memory_that_a_companion_lacks_is_a_reason(companions: Companions) -> None:
    huge = Point(operator="gelu", vector=(2**20, 2**20, 2**14))
    with (
        pytest.raises(CompanionError, match=r"^companion process: out of memory: "),
        companions.running(huge),
    ):
        pass


@needs_two_cores
@pytest.mark.slow
def test_a_companion_that_is_killed_is_noticed_and_replaced(companions: Companions) -> None:
    with (
        pytest.raises(CompanionError, match=r"^companion process: ended, signal 9 \(out of memory\?\)$"),
        companions.running(GELU),
    ):
        os.kill(companion_pid(), signal.SIGKILL)
    with companions.running(GELU):
        pass
    (process,) = active_children()
    os.kill(companion_pid(), signal.SIGKILL)  # between two points
    process.join()
    with pytest.raises(CompanionError, match="ended, signal 9"), companions.running(GELU):
        pass
    with companions.running(GELU):
        pass


@needs_two_cores
def test_what_the_measurement_raises_goes_first(companions: Companions) -> None:
    with pytest.raises(MemoryError), companions.running(GELU):
        raise MemoryError
    with companions.running(GELU):
        pass


@needs_two_cores
def test_an_interrupted_measurement_waits_for_no_companion(companions: Companions) -> None:
    with pytest.raises(KeyboardInterrupt), companions.running(GELU):
        raise KeyboardInterrupt
    assert not active_children()


def test_one_process_has_no_companions(cpu: Place) -> None:
    with Companions(1, cpu, threads=1, seed=20) as companions, companions.running(GELU):
        assert not active_children()


def test_more_than_there_is_room_for(cpu: Place) -> None:
    cores = available_cores()
    check_processes(cores, cpu, threads=1)
    with pytest.raises(
        UsageError, match=rf"found {cores + 1} with 1 thread\(s\) each, expected at most {cores} "
    ):
        check_processes(cores + 1, cpu, threads=1)
    with pytest.raises(UsageError, match="processes per node: found 0, expected 1 or more"):
        check_processes(0, cpu, threads=1)
