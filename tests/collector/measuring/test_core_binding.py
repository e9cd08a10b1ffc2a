"""Processes on cores of their own: which ones, and for how long."""

import os
import threading
from pathlib import Path

import pytest

from kernelcast.collector.machine import probe_cpu
from kernelcast.collector.measuring import core_binding
from kernelcast.collector.measuring.core_binding import bind, bound, is_bound, own_cores

if not hasattr(os, "sched_setaffinity"):
    pytest.skip("this system cannot bind processes to cores", allow_module_level=True)

ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_binding, "available_cores", lambda: len(os.sched_getaffinity(0)))


def system(folder: Path, monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str]) -> None:
    """A machine whose logical CPUs are those, each with the hardware threads of its core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(siblings))
    monkeypatch.setattr(core_binding, "_SYSTEM", folder)
    for cpu, listed in siblings.items():
        (folder / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{listed}\n")


def test_each_process_has_its_own_and_all_have_as_many_as_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, monkeypatch, {cpu: f"{cpu}" for cpu in (9, 1, 3, 4, 6, 7)})
    found = [own_cores(number, 3, threads=2) for number in range(3)]
    assert found == [(1, 3), (4, 6), (7, 9)]
    assert own_cores(0, 1, threads=1) == (1,)


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, [(0,), (2,)]),
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, [(0,), (1,)]),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_hardware_threads_of_one_core_are_shared_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str], cores: list[tuple[int]]
) -> None:
    system(tmp_path, monkeypatch, siblings)
    assert [own_cores(number, len(cores), threads=1) for number in range(len(cores))] == cores


@pytest.mark.parametrize(("processes", "threads"), [(2, 1), (1, 2)])
def test_a_process_that_its_launcher_has_bound_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch, processes: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5})
    assert own_cores(processes - 1, processes, threads=threads) == ()


def test_a_process_has_both_hardware_threads_of_a_core_where_all_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, monkeypatch, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert [own_cores(number, 2, threads=2) for number in range(2)] == [(0, 2), (1, 3)]
    assert own_cores(0, 1, threads=2) == (0, 1)


@pytest.mark.parametrize("text", ["", "7", "x"])
def test_a_system_that_does_not_say_which_threads_share_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    system(tmp_path, monkeypatch, {2: text, 5: text})
    assert [own_cores(number, 2, threads=1) for number in range(2)] == [(2,), (5,)]


def test_bound_here_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system(tmp_path, monkeypatch, {0: "0", 1: "1"})
    assert is_bound(2, threads=1)
    assert is_bound(1, threads=2)
    assert not is_bound(3, threads=1, environment={})
    assert not is_bound(2, threads=2, environment={})  # four threads share two CPUs
    monkeypatch.setattr(core_binding, "available_cores", lambda: 1)
    assert not is_bound(1, threads=1)


SRUN = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2)", "SLURM_STEP_NUM_TASKS": "16"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}


@pytest.mark.parametrize(
    ("environment", "cpus", "processes", "threads", "expected"),
    [
        (SRUN, 2, 8, 2, True),
        (SRUN, 2, 8, 1, True),  # both hardware threads of a core
        (SRUN, 1, 8, 2, True),
        (SRUN, 8, 8, 2, False),  # a socket for four of them
        (SRUN, 8, 2, 8, True),  # a socket each
        (SRUN, 16, 8, 4, False),  # the whole node for all
        (SRUN | {"SLURM_JOB_CPUS_PER_NODE": "2"}, 2, 8, 2, False),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, 2, 2, 2, False),  # one task that starts both
        (SRUN | {"TORCHELASTIC_RUN_ID": "x"}, 2, 8, 2, False),  # torchrun in a task
        (MPIRUN, 2, 8, 2, True),
        (MPIRUN, 8, 8, 2, False),
        (MPIRUN, 16, 8, 4, False),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 2, 2, 2, False),
        ({}, 2, 8, 2, False),
    ],
)
def test_bound_by_the_launcher_or_sharing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    cpus: int,
    processes: int,
    threads: int,
    expected: bool,
) -> None:
    system(tmp_path, monkeypatch, {cpu: f"{cpu}" for cpu in range(16)})
    # mpirun's daemon, the parent, may run on all of them.
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16 if process else cpus)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(probe_cpu, "_CGROUP", tmp_path / "none")
    assert is_bound(processes, threads=threads, environment=environment) == expected


def test_a_sandbox_that_forbids_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(process: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with bound((ALLOWED[0],)):
        assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_cores_that_a_quota_shares_with_others_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(core_binding, "available_cores", lambda: 2)
    assert not core_binding.can_bind()
    assert own_cores(0, 1, threads=1) == ()


def test_bound_for_the_length_of_a_block() -> None:
    with bound((ALLOWED[-1],)):
        assert os.sched_getaffinity(0) == {ALLOWED[-1]}
    assert sorted(os.sched_getaffinity(0)) == ALLOWED
    with pytest.raises(ZeroDivisionError), bound((ALLOWED[0],)):
        raise ZeroDivisionError
    assert sorted(os.sched_getaffinity(0)) == ALLOWED
    with bound(()):
        assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_threads_that_run_already_stay_free_and_new_ones_are_bound() -> None:
    bind_now, ended, seen = threading.Event(), threading.Event(), {}

    def look(name: str) -> None:
        bind_now.wait(10)
        seen[name] = os.sched_getaffinity(0)

    before = threading.Thread(target=look, args=["before"])
    before.start()

    def binding() -> None:
        bind((ALLOWED[0],))
        after = threading.Thread(target=look, args=["after"])
        after.start()
        bind_now.set()
        after.join()
        ended.set()

    thread = threading.Thread(target=binding)
    thread.start()
    for one in (thread, before):
        one.join()
    assert ended.is_set()
    assert (sorted(seen["before"]), seen["after"]) == (ALLOWED, {ALLOWED[0]})
    assert sorted(os.sched_getaffinity(0)) == ALLOWED
