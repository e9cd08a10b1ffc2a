"""This process's rank among the processes of a launcher: torchrun, Slurm's srun or Open MPI's mpirun."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelcast.collector.communication.slurm_step import rendezvous, tasks_per_node, tcp
from kernelcast.runtime.errors import UsageError

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

        Raises:
            UsageError: no launcher, a single process, or nodes with different numbers of processes.
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
