"""What a bundle answers for a question that does not say it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.estimate.defaults import usual_gpu_memory_bytes

Make = Callable[..., Path]


@pytest.mark.parametrize(
    ("devices", "memory_gib"),
    [
        ([("Example GPU", 80)], 80),
        ([("Example GPU", 0)], None),
        ([("NVIDIA H100 80GB HBM3", 79)], 79),
        ([("NVIDIA H100 80GB HBM3", 0)], 80),
        ([("NVIDIA GH200 120GB", 120)], 96),
        ([("NVIDIA GH200 120GB", 0), ("NVIDIA A100-SXM4-80GB", 79)], 79),
    ],
)
def test_the_memory_of_a_device_is_its_own(
    make_bundle: Make, devices: list[tuple[str, int]], memory_gib: int | None
) -> None:
    compute = [
        ComputeFingerprint(kind="cuda", device_name=name, memory_gib=memory_gib)
        for name, memory_gib in devices
    ]
    found = usual_gpu_memory_bytes(read_bundle(make_bundle(compute=compute)))
    assert found == (None if memory_gib is None else memory_gib << 30)


def test_a_cpu_has_the_memory_of_a_whole_machine(make_bundle: Make) -> None:
    compute = [ComputeFingerprint(kind="cpu", device_name="Example CPU", memory_gib=512)]
    assert usual_gpu_memory_bytes(read_bundle(make_bundle(compute=compute))) is None
