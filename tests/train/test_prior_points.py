"""The workloads that tell most about a device, by a prior from another one."""

import numpy as np

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.catalogue import hardware_bundle
from kernelcast.runtime.operators import Direction
from kernelcast.train.prior import Prior, most_telling

KEY = ("gemm", Direction.FORWARD)


def test_points_that_tell_the_same_are_not_chosen_twice() -> None:
    device = ComputeFingerprint(kind="cuda", device_name="NVIDIA H200", memory_gib=141)
    prior = Prior.of(hardware_bundle("h100-sxm"), device, "bfloat16")
    small, large = [16, 4096, 4096], [16_384, 8192, 8192]
    vectors = np.array([small, *[large] * 5], dtype=float)
    chosen = most_telling(prior, [KEY], vectors, 2)
    assert chosen[0] in range(1, 6)  # five candidates are known by one of them
    assert chosen[1] == 0
    assert sorted(most_telling(prior, [KEY, KEY], vectors, 99)) == list(range(6))
