"""A process's place, from the variables of torchrun, srun and mpirun."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.collector.communication.world import World, first_host, rendezvous, tasks_per_node
from kernelcast.runtime import UsageError

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "localhost",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_torchrun() -> None:
    world = World.from_launcher(TORCHRUN)
    assert world == World(rank=5, local_rank=1, size=8, local_size=4)
    assert (world.nodes, world.init_method) == (2, "env://")


def test_srun() -> None:
    world = World.from_launcher(SRUN)
    assert (world.rank, world.local_rank, world.size, world.local_size, world.nodes) == (5, 1, 8, 4, 2)
    assert world.init_method == f"tcp://localhost:{12_000 + 41 * 7 + 2}"
    own = World.from_launcher(SRUN | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "77"})
    assert own.init_method == "tcp://10.0.0.1:77"


def test_torchrun_inside_of_srun() -> None:
    # torchrun --nnodes 2 under srun: one task per node, whose place is not the process's.
    one = SRUN | {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    assert World.from_launcher(one | TORCHRUN) == World.from_launcher(TORCHRUN)


def test_mpirun() -> None:
    assert World.from_launcher(MPIRUN) == World(
        rank=1, local_rank=1, size=2, local_size=2, init_method="tcp://127.0.0.1:29500"
    )
    apart = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(UsageError, match="found no MASTER_ADDR, expected the first node's name"):
        World.from_launcher(apart)
    assert World.from_launcher(apart | {"MASTER_ADDR": "n1"}).init_method == "tcp://n1:29500"


def test_mpirun_inside_of_a_slurm_job() -> None:
    # Its daemons are a step of their own, or a shell is, whose variables all processes inherit.
    shell = {"SLURM_JOB_ID": "41", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
    daemons = SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    for inherited in (shell | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, daemons):
        assert World.from_launcher(inherited | MPIRUN) == World.from_launcher(MPIRUN)
    # The other way round: srun inside of an mpirun of one process.
    assert World.from_launcher(SRUN | MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1"}) == World.from_launcher(SRUN)


def test_ipv6_addresses_stand_in_brackets() -> None:
    for address in ("fe80::1", "[fe80::1]"):
        own = {"MASTER_ADDR": address, "MASTER_PORT": "77"}
        assert World.from_launcher(SRUN | own).init_method == "tcp://[fe80::1]:77"
        assert World.from_launcher(MPIRUN | own).init_method == "tcp://[fe80::1]:77"
    assert World.from_launcher(MPIRUN | {"MASTER_PORT": ""}).init_method == "tcp://127.0.0.1:29500"


@pytest.mark.parametrize("name", TORCHRUN)
@pytest.mark.parametrize("value", ["", "first", "-1", "١"])
def test_numbers_that_are_none(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"found {name}={value!r}, expected a whole number"):
        World.from_launcher(TORCHRUN | {name: value})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "found one and no launcher; expected kernelcast collect comm --procs 2"),
        ({"SLURM_JOB_ID": "41", "SLURM_PROCID": "0"}, r"no launcher \(in Slurm job 41, without srun\)"),
        (TORCHRUN | {"WORLD_SIZE": "1"}, "1 process.*expected 2 or more"),
        (TORCHRUN | {"WORLD_SIZE": "7"}, "7 process.*expected 2 or more, nodes alike"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "0"}, "expected 2 or more, nodes alike"),
        (
            SRUN | {"SLURM_STEP_TASKS_PER_NODE": "5,3"},
            "8 processes as 5,3 per node; expected 2 or more, nodes alike",
        ),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(y2)"}, r"is '4\(y2\)', expected such as 4 or 4\(x2\)"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": ""}, "is '', expected such as"),
        (SRUN | {"SLURM_PROCID": "2"}, "numbered node by node .srun --distribution=block"),
    ],
)
def test_what_cannot_be_is_one_line(environment: Mapping[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        World.from_launcher(environment)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_tasks_per_node(nodes: int, tasks: int, short: bool) -> None:
    text = f"{tasks}(x{nodes})" if short else ",".join([str(tasks)] * nodes)
    assert tasks_per_node({"SLURM_STEP_TASKS_PER_NODE": text}, nodes * tasks) == tasks
    with pytest.raises(UsageError):
        tasks_per_node({"SLURM_TASKS_PER_NODE": text}, nodes * tasks + 1)


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("gpu07", "gpu07"),
        ("gpu07,gpu09", "gpu07"),
        ("gpu[07-09,12]", "gpu07"),
        ("gpu-a[1],x[2-3]", "gpu-a1"),
    ],
)
def test_first_host(listed: str, first: str) -> None:
    assert first_host(listed) == first


def test_scontrol_is_asked_what_is_not_simple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "scontrol"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '"show hostnames rack[1-2]node[3-4]") echo rack1node3; echo rack1node4 ;;\n'
        '"show node rack1node3") echo "NodeName=rack1node3 NodeAddr=10.1.2.3 Port=1" ;;\n'
        "esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def unknown(name: str, port: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert first_host("rack[1-2]node[3-4]") == "rack1node3"
    step = {"SLURM_STEP_NODELIST": "rack[1-2]node[3-4]", "SLURM_JOB_ID": "1"}
    assert rendezvous(step, nodes=4) == "tcp://10.1.2.3:12007"
    assert rendezvous(step, nodes=1) == "tcp://127.0.0.1:12007"
    with pytest.raises(UsageError, match="name of node 'elsewhere' is unknown here; expected MASTER_ADDR"):
        rendezvous(step | {"SLURM_STEP_NODELIST": "elsewhere"}, nodes=2)
    with pytest.raises(UsageError, match=r"SLURM_STEP_NODELIST is 'x\[1\]y\[2\]', expected a node"):
        first_host("x[1]y[2]")
