"""This process's rank among the processes of a launcher: torchrun, Slurm's srun or Open MPI's mpirun."""

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.errors import UsageError

# `4(x2)`, `3`: tasks on each node, and on how many nodes.
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# `gpu07,gpu09`, `gpu[07-09,12]`: the text before the first comma or bracket, and the first number in the bracket.
_SIMPLE_LIST = re.compile(r"([^\[\],]+)(?:\[(\d+)[^\[\]]*\])?(?:,.*)?")

# Above the ports that need root, below Linux's ephemeral ports (from 32768).
_FIRST_PORT, _PORTS = 12_000, 16_000
_SCONTROL_SECONDS = 20.0


def tasks_per_node(environment: Mapping[str, str], size: int) -> int:
    """Tasks on each node of the step, equal on all nodes (else a UsageError); `size` is their total."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        found = _TASKS.fullmatch(part.strip())
        if found is None or len(counts) > size:
            raise UsageError(
                f"collect comm: SLURM_STEP_TASKS_PER_NODE is {text!r}, expected such as 4 or 4(x2)"
            )
        counts += [int(found[1])] * min(int(found[2] or 1), size + 1)
    if len(set(counts)) > 1 or sum(counts) != size:
        raise UsageError(
            f"collect comm: {size} processes as {text} per node; expected 2 or more, nodes alike "
            "(srun --ntasks-per-node)"
        )
    return counts[0]


def rendezvous(environment: Mapping[str, str], *, nodes: int) -> str:
    """Where the step's processes meet, as torch's init_method; MASTER_ADDR and MASTER_PORT take precedence."""
    address = environment.get("MASTER_ADDR", "")
    if not address:
        listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        address = "127.0.0.1" if nodes == 1 else _address(first_host(listed))
    port = environment.get("MASTER_PORT") or str(_port(environment))
    return tcp(address, port)


def tcp(address: str, port: str) -> str:
    """Torch's init_method for an address; IPv6 addresses are put in brackets."""
    host = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return f"tcp://{host}:{port}"


def first_host(node_list: str) -> str:
    """First host of Slurm's node list, `gpu07` of `gpu[07-09]`; scontrol expands lists with several brackets."""
    found = _SIMPLE_LIST.fullmatch(node_list)
    # What follows the bracket belongs to the name: rack[1-2]node3.
    if found is not None and (found[2] is None or re.match(r".*?\](,|$)", node_list)):
        return found[1] + (found[2] or "")
    hosts = _scontrol("show", "hostnames", node_list).split()
    if not hosts:
        raise UsageError(
            f"collect comm: SLURM_STEP_NODELIST is {node_list!r}, expected a node; MASTER_ADDR sets it"
        )
    return hosts[0]


def _address(host: str) -> str:
    """The host itself where its name resolves, else Slurm's address for it."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        found = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", host))
        if found is None:
            raise UsageError(
                f"collect comm: the name of node {host!r} is unknown here; expected MASTER_ADDR, the first node's "
                "address"
            ) from None
        return found[1]
    return host


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, timeout=_SCONTROL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _port(environment: Mapping[str, str]) -> int:
    """A port that concurrent steps do not share: jobs that run at once have consecutive numbers."""
    job, step = (
        int(text) if (text := environment.get(name, "")).isdecimal() else 0
        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return _FIRST_PORT + (job * 7 + step) % _PORTS


# Fields of a world, and each launcher's variables.
_TORCHRUN = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "size": "WORLD_SIZE",
    "local_size": "LOCAL_WORLD_SIZE",
}
_SRUN = {"rank": "SLURM_PROCID", "local_rank": "SLURM_LOCALID", "size": "SLURM_STEP_NUM_TASKS"}
_MPIRUN = {
    "rank": "OMPI_COMM_WORLD_RANK", "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "size": "OMPI_COMM_WORLD_SIZE", "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}  # fmt: skip
_PORT = 29500  # torch's usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's rank. Ranks are numbered node by node; `init_method` is torch's, where the processes meet."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    init_method: str = "env://"

    def __post_init__(self) -> None:
        size, local_size = self.size, self.local_size
        if size < 2 or local_size < 1 or size % local_size:
            raise UsageError(
                f"collect comm: {size} process(es), {local_size} per node; expected 2 or more, nodes alike"
            )
        if self.rank >= size or self.rank % local_size != self.local_rank:
            raise UsageError(
                f"collect comm: process {self.rank} is number {self.local_rank} of the {local_size} of its node; "
                "expected processes numbered node by node (srun --distribution=block)"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes, all with the same number of processes."""
        return self.size // self.local_size

    @classmethod
    def from_launcher(cls, environment: Mapping[str, str] = os.environ) -> "World":
        """Read the launcher's variables; torchrun's take precedence, because another launcher may have started it.

        UsageError without a launcher or an address, for a single process, or nodes with different numbers of processes.
        """
        if any(environment.get(name) for name in _TORCHRUN.values()):
            return cls(**_numbers(environment, _TORCHRUN))
        if environment.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
            # In a Slurm job, processes also see the variables of the step that started mpirun's daemons.
            found = _numbers(environment, _MPIRUN)
            is_one_node = found["size"] == found["local_size"]
            address = environment.get("MASTER_ADDR") or ("127.0.0.1" if is_one_node else "")
            if not address:
                raise UsageError(
                    "collect comm under mpirun over several nodes: found no MASTER_ADDR, expected the first node's "
                    "name: mpirun -x MASTER_ADDR=NODE"
                )
            return cls(**found, init_method=tcp(address, environment.get("MASTER_PORT") or str(_PORT)))
        if environment.get("SLURM_STEP_NUM_TASKS"):
            found = _numbers(environment, _SRUN)
            local_size = tasks_per_node(environment, found["size"])
            nodes = max(1, found["size"] // max(1, local_size))
            return cls(**found, local_size=local_size, init_method=rendezvous(environment, nodes=nodes))
        raise UsageError(
            f"collect comm runs in several processes, found one and no launcher{_where(environment)}; expected "
            "kernelcast collect comm --procs 2 --db FILE, or torchrun or srun in front of it"
        )


def _numbers(environment: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Whole numbers by the name of the field."""
    for name in variables.values():
        value = environment.get(name, "")
        if not (value.isascii() and value.isdecimal()):
            raise UsageError(
                f"collect comm runs under a launcher that sets {', '.join(variables.values())}; found "
                f"{name}={value!r}, expected a whole number"
            )
    return {field: int(environment[name]) for field, name in variables.items()}


def _where(environment: Mapping[str, str]) -> str:
    """A hint where srun is missing inside a batch script."""
    return f" (in Slurm job {job}, without srun)" if (job := environment.get("SLURM_JOB_ID")) else ""
