"""Which stages do not fit, and by how much."""

from kernelcast.runtime import Parallelism
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.memory import Overflow, device_kind, overflows, stage_memory
from kernelcast.runtime.request.models import load_model

GIB = 1 << 30


def test_stages_that_need_more_than_there_is() -> None:
    layout = Parallelism(pp=4, tp=4, dp=1, micro_batch=4, micro_batches=16, zero=0)
    stages = stage_memory(load_model("gpt-20b"), layout)
    needed = [stage.total_bytes for stage in stages]
    assert overflows(stages, max(needed)) == ()
    assert overflows(stages, max(needed) - 1) == (
        Overflow(stage=needed.index(max(needed)), needed_bytes=max(needed), capacity_bytes=max(needed) - 1),
    )
    assert [found.stage for found in overflows(stages, 0)] == [0, 1, 2, 3]


def test_the_message_says_both_sizes() -> None:
    found = Overflow(stage=2, needed_bytes=96 * GIB + GIB // 2, capacity_bytes=80 * GIB)
    assert found.message == "stage 2 needs 96.5 GiB per device, 80.0 GiB are there"


def test_kinds_of_devices() -> None:
    cpu, gpu = (ComputeFingerprint(kind=kind, device_name="x") for kind in ("cpu", "cuda"))
    assert device_kind([cpu, cpu]) == "cpu"
    assert device_kind([cpu, gpu]) == device_kind([gpu]) == device_kind([]) == "cuda"
