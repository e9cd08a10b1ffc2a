"""`collect comm` under srun in a real Slurm of two nodes: where every process finds its place, and what is measured."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.operators import OPERATORS
from kernelcast.store import Database

pytestmark = pytest.mark.slurm

Slurm = Any  # of conftest.py, which cannot be imported

PLAN = Path(__file__).parents[2] / "data" / "plans" / "tiny.toml"
KERNELCAST = (sys.executable, "-m", "kernelcast.cli.main")
COMM = (*KERNELCAST, "collect", "comm", "--device", "cpu", "--plan", str(PLAN))
COLLECTIVES = [op.name for op in OPERATORS.values() if op.is_collective and not op.is_on_request]


def measured(path: Path) -> set[tuple[str, tuple[int, ...]]]:
    with Database.open(path, read_only=True) as database:
        return {(row.operator, row.vector[1:]) for row in database.read_samples()}


def srun(slurm: Slurm, folder: Path, nodes: int, tasks: int, *more: str, **environment: str) -> Any:
    where = ("--nodes", str(nodes), "--ntasks-per-node", str(tasks), "--kill-on-bad-exit=1", "--overcommit")
    return slurm.run("srun", *where, *COMM, *more, cwd=folder, OMP_NUM_THREADS="1", **environment)


def test_one_node(two_node_slurm: Slurm, tmp_path: Path) -> None:
    path = tmp_path / "bench.db"
    done = srun(two_node_slurm, tmp_path, 1, 2, "--db", str(path))
    assert done.status == 0, done
    assert done.out.startswith(f"{path}: {3 * len(COLLECTIVES)} measured")
    assert measured(path) == {(name, (1, 2)) for name in COLLECTIVES}


def test_a_task_with_one_core_is_on_the_same_machine(slurm: Slurm, tmp_path: Path) -> None:
    probe = ("probe", "--device", "cpu", "--json")
    whole_node = ("salloc", "--quiet", "--nodes=1", "--exclusive", "srun", "--ntasks=1", "--cpus-per-task=1")
    everywhere, bound = (
        json.loads(slurm.run(*whole_node, *binding, *KERNELCAST, *probe, cwd=tmp_path).out)["compute"]
        for binding in ((), ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))))
    )
    assert everywhere["fields"]["cores"] == os.cpu_count()
    assert bound == everywhere


def test_two_nodes_find_each_other_and_sites_merge(two_node_slurm: Slurm, tmp_path: Path) -> None:
    # far1 is no name that anybody resolves: its address comes from Slurm.
    path = tmp_path / "bench.db"
    done = srun(two_node_slurm, tmp_path, 2, 1, "--db", str(path), "--layouts", "2x1")
    assert done.status == 0, done
    assert measured(path) == {(name, (2, 1)) for name in COLLECTIVES}
    again = srun(two_node_slurm, tmp_path, 2, 1, "--db", str(path))
    assert " ".join(again.out.split()).startswith(
        f"{path}: 0 measured, {3 * len(COLLECTIVES)} already there "
    )


def test_a_batch_script_without_srun_says_so(two_node_slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "comm.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --output={tmp_path}/out\n{' '.join(COMM)} --db x.db\n"
    )
    submitted = two_node_slurm.run("sbatch", str(script), cwd=tmp_path)
    two_node_slurm.ended(submitted.job)
    (line,) = (tmp_path / "out").read_text().splitlines()
    assert line.startswith(
        "kernelcast: error: collect comm runs in several processes, found one and no launcher (in Slurm job "
    )


def test_nodes_that_are_not_alike_are_one_line(two_node_slurm: Slurm, tmp_path: Path) -> None:
    done = two_node_slurm.run(
        "srun", "--nodes=2", "--ntasks=3", "--overcommit", *COMM, "--db", "x.db", cwd=tmp_path
    )
    assert done.status == 2
    said = [line for line in done.said.splitlines() if line.startswith("kernelcast: ")]
    assert set(said) == {
        "kernelcast: error: collect comm: 3 processes as 2,1 per node; expected 2 or more, nodes alike "
        "(srun --ntasks-per-node)"
    }
    assert not (tmp_path / "x.db").exists()
