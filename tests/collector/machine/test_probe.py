"""Fingerprints of this machine: the same every time, in every process, and nothing in them says whose it is."""

import getpass
import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelcast.collector.machine.probe import probe, resolve_device
from kernelcast.collector.machine.probe_gpu import driver_version, gpu_links
from kernelcast.collector.measuring import cache_state, core_binding, gloo_threads
from kernelcast.collector.measuring.host_memory import SETTING, keeps_freed_memory
from kernelcast.runtime import DataError, UsageError

CPU = torch.device("cpu")
PROGRAM = """
import torch
from kernelcast.collector.machine.probe import probe
found = probe(torch.device("cpu"), threads=1)
print(found.compute.digest, found.fabric.digest, found.software.digest)
"""


def digests(threads: int = 1) -> list[str]:
    found = probe(CPU, threads=threads)
    return [found.compute.digest, found.fabric.digest, found.software.digest]


def test_the_same_machine_gives_the_same_digests_twice() -> None:
    assert digests() == digests()


def test_and_in_another_process_with_another_environment(tmp_path: Path) -> None:
    # As under torchrun, with another home, user, host and folder.
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path),
        "USER": "somebody",
        "HOSTNAME": "elsewhere",
        "RANK": "1",
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == digests()


def identities() -> list[str]:
    """What identifies this machine or its user, as far as it can be read here."""
    found = [socket.gethostname(), socket.getfqdn(), getpass.getuser(), str(Path.home()), os.getcwd()]
    files = [Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"), Path("/etc/hostname")]
    dmi = Path("/sys/class/dmi/id")
    files += [*dmi.glob("*serial"), *dmi.glob("*uuid"), *Path("/sys/class/net").glob("*/address")]
    for file in files:
        try:
            found.append(file.read_text().strip())
        except OSError:
            continue
    # Words such as "root" or "None" are in any text.
    return [value for value in found if len(value) >= 5 and value != "localhost" and set(value) - set("0:")]


def test_nothing_identifies_the_machine_or_its_user() -> None:
    found = probe(CPU, threads=1)
    text = json.dumps([part.to_dict() for part in (found.compute, found.fabric, found.software)])
    text += found.compute.description + found.fabric.description + found.software.description
    assert identities()
    for value in identities():
        assert value.lower() not in text.lower()
    assert "/" not in "".join(v for v in found.software.environment)


def test_what_a_cpu_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    found = probe(CPU, threads=1)
    assert found.compute.kind == "cpu"
    assert found.compute.device_name
    assert found.compute.cores >= 1
    [total_kib] = re.findall(r"^MemTotal: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert abs(found.compute.memory_gib - int(total_kib) / 2**20) <= 1
    assert found.fabric.backend == "gloo"
    assert found.fabric.gpus_per_node == found.compute.cores
    assert found.software.torch == torch.__version__
    kept = (SETTING,) if keeps_freed_memory() else ()
    cores = (core_binding.SETTING,) if core_binding.is_bound(1, threads=1) else ()
    gloo = (gloo_threads.SETTING,) if gloo_threads.can_calm() else ()
    assert found.software.environment == ("MKL_CBWR=COMPATIBLE", cache_state.SETTING, *kept, *cores, *gloo)


def test_threads_are_part_of_a_cpu() -> None:
    one, two = probe(CPU, threads=1), probe(CPU, threads=2)
    assert (one.compute.threads, two.compute.threads) == (1, 2)
    assert one.compute.digest != two.compute.digest
    assert two.fabric.gpus_per_node == max(1, one.fabric.gpus_per_node // 2)
    assert one.software.digest == two.software.digest


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(UsageError, match="device 'tpu' is unknown; expected auto, cpu or cuda"):
        resolve_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="device is 'cuda', but torch finds no CUDA device here"):
        resolve_device("cuda")


TOPOLOGY = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tPIX\t0-47\t0
GPU1\tNV18\t X \tNV18\tSYS\t0-47\t0
GPU2\tNV18\tNV18\t X \tSYS\t48-95\t1
NIC0\tPIX\tSYS\tSYS\t X

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def install_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program named nvidia-smi, first on the path."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_links_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "topology").write_text(TOPOLOGY)
    install_tool(tmp_path, monkeypatch, f"cat {tmp_path}/topology")
    # Three links between GPUs, each counted once; the adapter is near to one of them.
    assert gpu_links() == ("NV18 ×3", "PIX ×1", "SYS ×2")


@pytest.mark.parametrize(
    ("script", "version"), [("echo 550.54.15", "550.54.15"), ("exit 9", ""), ("echo a, b", "")]
)
def test_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, version: str) -> None:
    install_tool(tmp_path, monkeypatch, script)
    assert driver_version() == version


def test_a_tool_that_hangs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelcast.collector.machine.probe_gpu._QUERY_TIMEOUT_S", 0.2)
    install_tool(tmp_path, monkeypatch, "exec sleep 20")
    with pytest.raises(DataError, match=r"^nvidia-smi --query-gpu=.*: no answer within 0.2 s$"):
        driver_version()


def test_without_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver_version() == ""
    assert gpu_links() == ()
