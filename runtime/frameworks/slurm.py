"""Nodes and GPUs of a job, by Slurm's options: of sbatch, its environment, its plugins and `#SBATCH` lines."""

import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import takewhile

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.layout import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Nodes and GPUs of a job; None where unknown. `origin` describes where the numbers come from."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    origin: str = ""

    def check(self, layout: Parallelism) -> None:
        """Check that layout and job have the same number of GPUs, if the job's is known; else UsageError."""
        if self.gpus is not None and self.gpus != layout.world_size:
            raise UsageError(
                f"layout {layout.degrees} has {layout.world_size} GPU(s), "
                f"expected {self.gpus}, as the job asks for ({self.origin})"
            )


_SHORT: Mapping[str, str] = {
    "nodes": "-N",
    "ntasks": "-n",
    "ntasks-per-node": "",
    "gpus": "-G",
    "gpus-per-node": "",
    "gpus-per-task": "",
    "gres": "",
}
OPTIONS = tuple(_SHORT)
"""Options that decide how many nodes and GPUs a job gets."""

_MOST = 10_000_000


def slurm_allocation(options: Mapping[str, str]) -> Allocation:
    """Nodes and GPUs that Slurm gives a job with these options (long names without dashes), from a command line or the
    plugins. Unknown is what Slurm decides later, and options that cannot be read.
    """
    per_node = _gpus(options.get("gpus-per-node", ""))
    if per_node is None:
        per_node = _gres(options.get("gres", ""))
    nodes = _nodes(options, per_node)
    gpus = _gpus(options.get("gpus", ""))
    per_task, tasks = _gpus(options.get("gpus-per-task", "")), _whole(options.get("ntasks", ""))
    if gpus is None and per_task is not None and tasks is not None:
        gpus = per_task * tasks
    if gpus is None and per_node is not None and nodes is not None:
        gpus = per_node * nodes
    if per_node is None and gpus is not None and nodes is not None and gpus % nodes == 0:
        per_node = gpus // nodes
    stated = [f"{name} {options[name]}" for name in OPTIONS if _is_given(name, options.get(name, ""))]
    return Allocation(nodes=nodes, gpus_per_node=per_node, gpus=gpus, origin=", ".join(stated))


def sbatch_options(line: str) -> dict[str, str]:
    """Options of one `#SBATCH` line that decide nodes and GPUs; unreadable ones are left to Slurm."""
    try:
        words = shlex.split(line, comments=False)[1:]
    except ValueError:
        return {}
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word.startswith("#"):
            break
        for name, short in _SHORT.items():
            if word.startswith(f"--{name}="):
                found[name] = word.partition("=")[2]
            elif word == f"--{name}" or (short and word == short):
                found[name] = words.pop(0) if words else ""
            elif short and word.startswith(short) and not word.startswith("--"):
                found[name] = word[len(short) :]
    return found


def script_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets by a script's first `#SBATCH` lines, and `WORLD_SIZE` that launchers make of them."""
    options: dict[str, str] = {}
    for line in takewhile(lambda one: not one.strip() or one.startswith("#"), text.split("\n")):
        if line.startswith("#SBATCH"):
            options |= sbatch_options(line)
    given = slurm_allocation(options) if options else Allocation()
    known = {
        "SLURM_NNODES": given.nodes,
        "SLURM_JOB_NUM_NODES": given.nodes,
        "SLURM_GPUS_ON_NODE": given.gpus_per_node,
        "SLURM_GPUS_PER_NODE": given.gpus_per_node,
        "SLURM_NTASKS": options.get("ntasks"),
        "SLURM_NTASKS_PER_NODE": options.get("ntasks-per-node"),
        "WORLD_SIZE": given.gpus,
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def slurm_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The options above from the environment of a running job; empty outside a job."""
    if "SLURM_JOB_ID" not in environment:
        return {}
    names = {
        "nodes": ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
        "ntasks": ("SLURM_NTASKS",),
        "gpus": ("SLURM_GPUS",),
        "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
        "gpus-per-task": ("SLURM_GPUS_PER_TASK",),
    }
    found = {
        option: next((environment[name] for name in variables if environment.get(name)), "")
        for option, variables in names.items()
    }
    return {option: value for option, value in found.items() if value}


def _nodes(options: Mapping[str, str], gpus_per_node: int | None) -> int | None:
    text = options.get("nodes", "")
    if _is_given("nodes", text):
        low, dash, high = text.partition("-")
        return _whole(low) if not dash or low == high else None
    tasks = _whole(options.get("ntasks", "")) or 1
    per_node = _whole(options.get("ntasks-per-node", ""))
    if per_node:
        return -(-tasks // per_node)
    # One task runs on one node, if a node has its GPUs; where more go, Slurm decides.
    return 1 if tasks == 1 and gpus_per_node is not None else None


def _is_given(name: str, text: str) -> bool:
    return bool(text) and not (name == "nodes" and text == "1-0") and not text.startswith("-")


def _gpus(text: str) -> int | None:
    """GPUs of an option for GPUs: `4`, `a100:4`, `a100:2,v100:2`; job_submit gives it as a `--gres` list."""
    if not text or text.startswith("-"):
        return None
    if text.startswith("gres"):
        return _gres(text)
    return _sum(re.split("[:=]", part) for part in text.split(","))


def _gres(text: str) -> int | None:
    """GPUs of a `--gres` list: `gpu:4`, `gres:gpu:a100:4,lustre:1`; other resources are ignored."""
    parts = (re.split("[:=]", re.sub("^gres[:/]", "", part)) for part in text.split(","))
    gpus = [words[1:] or ["1"] for words in parts if words[0] == "gpu"]
    return _sum(gpus) if gpus else None


def _sum(parts: Iterable[list[str]]) -> int | None:
    """The sum of the numbers, each with or without a GPU type before it; a type alone is one GPU."""
    total = 0
    for *kinds, last in parts:
        count = _whole(last) if last.isdigit() else 1
        if count is None or len(kinds) > 1:
            return None
        total += count
    return total


def _whole(text: str) -> int | None:
    if not re.fullmatch("[0-9]{1,8}", text):
        return None
    number = int(text)
    return number if 0 < number <= _MOST else None
