"""What a GPU states of itself, from a torch, a tool and a driver that the tests write."""

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelcast.collector.machine import probe_gpu
from kernelcast.collector.machine.probe_gpu import Gpu, gpu_fields, is_power_capped, throttles
from kernelcast.collector.machine.sensors import GpuSensors, Sensors, sensors_of

CUDA = torch.device("cuda")
FIRST = SimpleNamespace(
    uuid="aa-0", name="H9", major=9, minor=1, multi_processor_count=132, total_memory=int(79.6 * 2**30)
)
SECOND = SimpleNamespace(**(vars(FIRST) | {"uuid": "bb-1", "name": "H8"}))


@pytest.fixture(name="_gpus", autouse=True)
def gpus_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", [FIRST, SECOND].__getitem__)


def install_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A program nvidia-smi, first on the path, that writes down its arguments."""
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/asked\n{script}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "asked"


def test_fields_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install_tool(tmp_path, monkeypatch, "echo '1980, 2619, 699.60, Enabled, Disabled'")
    assert gpu_fields(CUDA) == {
        "kind": "cuda",
        "device_name": "H9",
        "compute_capability": "9.1",
        "multiprocessors": 132,
        "memory_gib": 80,
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 2619,
        "power_limit_w": 700,
        "ecc": "enabled",
        "mig": "disabled",
    }
    assert asked.read_text().splitlines() == [
        "--id=GPU-aa-0",
        "--query-gpu=clocks.max.sm,clocks.max.memory,power.limit,ecc.mode.current,mig.mode.current",
        "--format=csv,noheader,nounits",
    ]
    monkeypatch.setattr(torch.version, "hip", "6.2")
    second = gpu_fields(torch.device("cuda", 1))
    assert (second["kind"], second["device_name"]) == ("rocm", "H8")
    assert asked.read_text().startswith("--id=GPU-bb-1\n")


@pytest.mark.parametrize(
    "script", ["echo 1980, 2619, 700", "echo '[N/A], [N/A], 7W, [N/A], on'", "echo 1, 2, 3, a, b; exit 3"]
)
def test_what_the_tool_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    install_tool(tmp_path, monkeypatch, script)
    found = gpu_fields(CUDA)
    clocks = [found[name] for name in ("max_sm_clock_mhz", "max_memory_clock_mhz", "power_limit_w")]
    assert (clocks, found["ecc"], found["mig"]) == ([0, 0, 0], "", "")


class Library:
    """A driver's library: the status of each call, and what it says."""

    def __init__(self, **status: int) -> None:
        self.status = status
        self.asked: Any = None

    def nvmlInit_v2(self) -> int:
        return self.status.get("init", 0)

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        self.asked = name
        handle._obj.value = 77
        return self.status.get("find", 0)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: ctypes.c_void_p, bits: Any) -> int:
        bits._obj.value = handle.value + 0x100
        return self.status.get("reasons", 0)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, infos: None) -> int:
        assert count._obj.value == 0
        count._obj.value = 5
        return self.status.get("processes", 7)


def found(monkeypatch: pytest.MonkeyPatch, library: Any) -> Gpu | None:
    monkeypatch.setattr(probe_gpu.ctypes, "CDLL", lambda name: library)
    return Gpu.find(CUDA)


def test_the_gpu_of_a_device_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = found(monkeypatch, library := Library())
    assert gpu is not None
    assert library.asked == b"GPU-aa-0"
    assert gpu.clock_reasons() == 77 + 0x100
    assert gpu.processes() == 5  # the room for their names is too small, their number is known
    assert isinstance(sensors_of(CUDA), GpuSensors)
    again = found(monkeypatch, Library(processes=0))
    assert again is not None
    assert again.processes() == 5


def test_a_driver_that_refuses_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (Library(init=1), Library(find=2), object()):
        assert found(monkeypatch, library) is None
        assert type(sensors_of(CUDA)) is Sensors
    gpu = found(monkeypatch, Library(reasons=1, processes=1))
    assert gpu is not None
    assert (gpu.clock_reasons(), gpu.processes()) == (0, 0)


def test_reasons_of_a_clock_by_their_bits() -> None:
    assert [throttles(1 << bit) for bit in range(10)] == [
        [], [], [], ["hardware slowdown"], [], ["software thermal slowdown"], ["hardware thermal slowdown"],
        ["power brake"], [], [],
    ]  # fmt: skip
    assert [bit for bit in range(10) if is_power_capped(1 << bit)] == [2]
    assert throttles(0xE8) == [
        "hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake",
    ]  # fmt: skip
