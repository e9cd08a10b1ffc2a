"""Groups, launchers and cores of machines: drawn_worlds.txt, which WRITE_DRAWN_WORLDS=1 pytest THIS_FILE writes."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernelcast.collector.communication import world as launchers
from kernelcast.collector.communication.layouts import layouts
from kernelcast.collector.communication.world import World, first_host, rendezvous, tasks_per_node
from kernelcast.collector.measuring import core_binding
from kernelcast.collector.measuring.core_binding import is_bound, other_cores, own_cores
from kernelcast.runtime import UsageError

TEXT = Path(__file__).with_name("drawn_worlds.txt")
LAYOUTS = (
    "",
    "1x2",
    "2x1",
    "2x2",
    "4x1",
    "1x3",
    "tp2",
    "tp4",
    "tp8",
    "mp6",
    "dp2",
    "dp3",
    "dp4",
    "dp8",
    "pp2",
    "pp4",
    "pp8",
)


def outcome(asked: Callable[..., object], *given: object) -> str:
    try:
        return str(asked(*given))
    except UsageError as error:
        return str(error)


def formed(text: str, world: World) -> object:
    return [
        (one.nodes, one.per_node, one.size, one.groups_per_node, len(one.groups), one.groups[0], one.groups[-1])
        for one in layouts(text, world)
    ]  # fmt: skip


def groups() -> Iterator[str]:
    for nodes, local in ((1, 2), (1, 6), (2, 1), (2, 2), (2, 4), (3, 4), (4, 2), (4, 3), (5, 8)):
        world = World(rank=0, local_rank=0, size=nodes * local, local_size=local)
        for text in LAYOUTS:
            yield f"{nodes}x{local} {text}: {outcome(formed, text, world)}"


def launched(drawn: Random) -> Iterator[str]:
    torchrun = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    srun = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "localhost,b",
            "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "2"}  # fmt: skip
    mpirun = {f"OMPI_COMM_WORLD_{name}": value for name, value in
              (("RANK", "3"), ("LOCAL_RANK", "1"), ("SIZE", "4"), ("LOCAL_SIZE", "2"))}  # fmt: skip
    master = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "4444"}
    for _ in range(160):
        given: dict[str, str] = {}
        for own in drawn.choice([[torchrun], [srun], [srun], [mpirun], [srun, mpirun], [torchrun, srun], []]):
            given |= own
        given |= {name: value for name, value in master.items() if drawn.random() < 0.4}
        for _ in range(drawn.choice([0, 0, 1, 2])):
            name = drawn.choice([*given, "SLURM_JOB_ID"])
            given[name] = drawn.choice(
                ["", "0", "1", "2", "4", "5", "4(x1)", "3,1", "2,2", "2(x", "fe80::1", "localhost"]
            )
        told = " ".join(f"{name}={value}" for name, value in given.items())
        yield f"{told}: {outcome(World.from_launcher, given)}"
    for text in ("4", "2(x2)", "1,1,2", "1(x4)", "4(x0)", "2,2", "x", "", "4(x99999999)"):
        given = {"SLURM_STEP_TASKS_PER_NODE": text}
        yield f"tasks {text}: {outcome(tasks_per_node, given, 4)}"
    for listed in (
        "gpu07",
        "gpu[07-09]",
        "a,b",
        "gpu[3,5]",
        "rack[1-2]node3",
        "",
        "a[1-2]b[3-4],c",
        "gpu[07-09],x",
    ):
        yield f"first of {listed}: {outcome(first_host, listed)}"
    for nodes in (1, 2):
        for job in ("", "0", "7", "99999", "x"):
            given = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "3", "SLURM_JOB_NODELIST": "localhost"}
            yield f"meet {nodes} {job}: {rendezvous(given, nodes=nodes)}"


def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Machines of eight logical CPUs: threads of a core numbered apart, side by side, or not stated."""
    environments: tuple[dict[str, str], ...] = (
        {}, {"SLURM_STEP_NUM_TASKS": "2"}, {"SLURM_STEP_NUM_TASKS": "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        {"SLURM_STEP_NUM_TASKS": "2", "TORCHELASTIC_RUN_ID": "x"},
    )  # fmt: skip
    places: dict[str, Any] = {
        "apart": lambda cpu: (cpu % 4, cpu // 4), "beside": lambda cpu: (cpu // 2 * 2, cpu % 2),
        "none": lambda cpu: (cpu, 0),
    }  # fmt: skip
    for name, place in places.items():
        monkeypatch.setattr(core_binding, "_place", place)
        for allowed, quota in (({*range(8)}, 8), ({*range(8)}, 5), ({1, 5}, 2), ({0, 2, 3, 7}, 4)):
            monkeypatch.setattr(os, "sched_getaffinity", lambda pid, allowed=allowed: allowed)
            monkeypatch.setattr(core_binding, "available_cores", lambda quota=quota: quota)
            monkeypatch.setattr(core_binding, "job_cores", lambda environment: 8)
            for processes, threads in ((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (5, 2)):
                own = [own_cores(number, processes, threads=threads) for number in range(processes)]
                others = other_cores(processes, threads=threads)
                bound = [is_bound(processes, threads=threads, environment=one) for one in environments]
                yield f"{name} {sorted(allowed)} of {quota}, {processes} of {threads}: {own} {others} {bound}"


def everything(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(launchers, "_scontrol", lambda *arguments: "")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [])
    with monkeypatch.context() as patched:
        listed = [*groups(), *launched(Random(3)), *cores(patched)]
    return "\n".join(line.rstrip() for line in listed) + "\n"


def test_groups_launchers_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    found = everything(monkeypatch)
    if "WRITE_DRAWN_WORLDS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
