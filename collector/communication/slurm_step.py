"""Variables of srun: how many processes of a job step are on each node, and where they meet."""

import re
import socket
import subprocess
from collections.abc import Mapping

from kernelcast.runtime.errors import UsageError

# `4(x2)`, `3`: tasks on each node, and on how many nodes.
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# `gpu07,gpu09`, `gpu[07-09,12]`: the text before the first comma or bracket, and the first number in the bracket.
_SIMPLE_LIST = re.compile(r"([^\[\],]+)(?:\[(\d+)[^\[\]]*\])?(?:,.*)?")

# Above the ports that need root, below Linux's ephemeral ports (from 32768).
_FIRST_PORT, _PORTS = 12_000, 16_000
_SCONTROL_SECONDS = 20.0


def tasks_per_node(environment: Mapping[str, str], size: int) -> int:
    """Tasks on each node of the step, equal on all nodes; `size` is their total.

    Raises:
        UsageError: nodes with different numbers of tasks, or an unreadable variable.
    """
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
    """Where the step's processes meet, as torch's init_method; MASTER_ADDR and MASTER_PORT take precedence.

    Raises:
        UsageError: the first node's name cannot be resolved here.
    """
    address = environment.get("MASTER_ADDR", "")
    if not address:
        address = "127.0.0.1" if nodes == 1 else _address(first_host(_node_list(environment)))
    port = environment.get("MASTER_PORT") or str(_port(environment))
    return tcp(address, port)


def tcp(address: str, port: str) -> str:
    """Torch's init_method for an address; IPv6 addresses are put in brackets."""
    host = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return f"tcp://{host}:{port}"


def _node_list(environment: Mapping[str, str]) -> str:
    return environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")


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
