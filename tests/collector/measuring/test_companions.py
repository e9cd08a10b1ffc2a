"""Processes that run an operator beside the one that measures it."""

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import active_children

import pytest

from kernelcast.collector.benches import Place
from kernelcast.collector.machine.probe_cpu import available_cores
from kernelcast.collector.measuring.companion_worker import Task
from kernelcast.collector.measuring.companions import CompanionError, Companions, check_processes
from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import Shape

needs_two_cores = pytest.mark.skipif(available_cores() < 2, reason="one core: no companion fits")


@pytest.fixture
def companions(cpu: Place) -> Iterator[Companions]:
    with Companions(2, cpu, threads=1, seed=20) as started:
        yield started
    assert not active_children()


def processor_seconds(pid: int) -> float:
    """What a process has computed so far."""
    with open(f"/proc/{pid}/stat") as stat:
        cells = stat.read().rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def companion_pid() -> int:
    (process,) = active_children()
    assert process.pid is not None
    return process.pid


@needs_two_cores
def test_a_companion_computes_as_long_as_it_is_asked_to(companions: Companions, shape: Shape) -> None:
    for operator in ("gelu", "qkv_linear"):  # one process serves all points
        with companions.running(Task(operator=operator, shape=shape)):
            pid = companion_pid()
            wanted = processor_seconds(pid) + 0.05
            deadline = time.monotonic() + 30  # others may keep the cores busy
            while processor_seconds(pid) < wanted and time.monotonic() < deadline:
                time.sleep(0.05)
            assert processor_seconds(pid) >= wanted
    waiting = processor_seconds(pid)
    time.sleep(0.2)
    assert processor_seconds(pid) - waiting <= 0.02


@needs_two_cores
def test_what_a_companion_cannot_run_is_said_and_the_next_point_runs(
    companions: Companions, shape: Shape
) -> None:
    with (
        pytest.raises(CompanionError, match=r"^companion process: no fused scale-mask-softmax kernel"),
        companions.running(Task(operator="fused_causal_softmax", shape=shape)),
    ):
        pass
    pid = companion_pid()
    with companions.running(Task(operator="gelu", shape=shape)):
        assert companion_pid() == pid


@needs_two_cores
def test_memory_that_a_companion_lacks_is_a_reason(companions: Companions) -> None:
    huge = Shape(
        micro_batch=2**20,
        sequence_length=2**20,
        hidden_size=2**12,
        attention_heads=4,
        kv_heads=4,
        mlp_size=2**14,
    )
    with (
        pytest.raises(CompanionError, match=r"^companion process: out of memory: "),
        companions.running(Task(operator="gelu", shape=huge)),
    ):
        pass


@needs_two_cores
def test_a_companion_that_is_killed_is_noticed_and_replaced(companions: Companions, shape: Shape) -> None:
    task = Task(operator="gelu", shape=shape)
    with (
        pytest.raises(CompanionError, match=r"^companion process: ended, signal 9 \(out of memory\?\)$"),
        companions.running(task),
    ):
        os.kill(companion_pid(), signal.SIGKILL)
    with companions.running(task):
        pass
    os.kill(companion_pid(), signal.SIGKILL)  # between two points
    time.sleep(0.1)
    with pytest.raises(CompanionError, match="ended, signal 9"), companions.running(task):
        pass
    with companions.running(task):
        pass


@needs_two_cores
def test_what_the_measurement_raises_goes_first(companions: Companions, shape: Shape) -> None:
    with pytest.raises(MemoryError), companions.running(Task(operator="gelu", shape=shape)):
        raise MemoryError
    with companions.running(Task(operator="gelu", shape=shape)):
        pass


@needs_two_cores
def test_an_interrupted_measurement_waits_for_no_companion(companions: Companions, shape: Shape) -> None:
    with pytest.raises(KeyboardInterrupt), companions.running(Task(operator="gelu", shape=shape)):
        raise KeyboardInterrupt
    assert not active_children()


def test_one_process_has_no_companions(cpu: Place, shape: Shape) -> None:
    task = Task(operator="gelu", shape=shape)
    with Companions(1, cpu, threads=1, seed=20) as companions, companions.running(task):
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
