"""What a bundle answers for a question that does not say it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.defaults import usual_gpu_memory_bytes, usual_reserved_bytes
from kernelcast.runtime.estimate.device_memory import Memory

Make = Callable[..., Path]
TINY = ModelConfig(
    name="tiny", hidden_size=4, sequence_length=2, attention_heads=4, layers=4, vocabulary_size=1
)


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


@pytest.mark.parametrize(
    ("kinds", "reserved_gib"), [(["cuda"], 1.5), (["cpu", "cuda"], 1.5), (["cpu"], 0), ([], 0)]
)
def test_part_of_a_gpu_is_reserved(make_bundle: Make, kinds: list[str], reserved_gib: float) -> None:
    compute = [ComputeFingerprint(kind=kind, device_name=f"Example {kind}") for kind in kinds]
    path = make_bundle(compute=compute)
    assert usual_reserved_bytes(read_bundle(path)) == reserved_gib * 2**30
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)

    def memory(**sizes: int) -> Memory:
        return Estimator.load(path).predict(model=TINY, parallelism=layout, **sizes).memory

    needed = memory().largest_bytes
    usual = memory(gpu_memory_bytes=needed + round(reserved_gib * 2**30))
    assert (usual.fits, usual.margin_bytes, usual.fits_stage(usual.stages[0])) == (True, 0, True)
    assert not usual.communicators
    several = Estimator.load(path).predict(model=TINY, parallelism=replace(layout, dp=4)).memory
    assert several.communicators == ({"dp": 392 << 20} if reserved_gib else {})
    less = memory(gpu_memory_bytes=needed, reserved_memory_bytes=1)
    assert (less.fits, less.margin_bytes, less.fits_stage(less.stages[0])) == (False, -1, False)
    # More is reserved than there is.
    assert memory(gpu_memory_bytes=1, reserved_memory_bytes=9).usable_bytes == 0
    assert memory().margin_bytes is None
    with pytest.raises(UsageError, match=r"^reserved_memory_bytes is -1, expected a whole number from 0 to"):
        memory(reserved_memory_bytes=-1)


def test_a_cpu_has_the_memory_of_a_whole_machine(make_bundle: Make) -> None:
    compute = [ComputeFingerprint(kind="cpu", device_name="Example CPU", memory_gib=512)]
    assert usual_gpu_memory_bytes(read_bundle(make_bundle(compute=compute))) is None
