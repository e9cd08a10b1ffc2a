"""The workloads that tell most about a device, by a prior from another one."""

import numpy as np
import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.transfer import LIKENESS, centred
from kernelcast.runtime.catalogue import hardware_bundle
from kernelcast.runtime.operators import Direction
from kernelcast.train.prior import Prior, most_telling

KEY = ("gemm", Direction.FORWARD)


@pytest.fixture
def prior() -> Prior:
    device = ComputeFingerprint(kind="cuda", device_name="NVIDIA H200", memory_gib=141)
    return Prior.of(hardware_bundle("h100-sxm"), device, "bfloat16")


def test_points_that_tell_the_same_are_not_chosen_twice(prior: Prior) -> None:
    small, large = [16, 4096, 4096], [16_384, 8192, 8192]
    vectors = np.array([small, *[large] * 5], dtype=float)
    chosen = most_telling(prior, [KEY], vectors, 2)
    assert chosen[0] in range(1, 6)  # five candidates are known by one of them
    assert chosen[1] == 0
    assert sorted(most_telling(prior, [KEY, KEY], vectors, 99)) == list(range(6))


def test_every_point_leaves_the_least_variance_at_all_candidates(prior: Prior) -> None:
    vectors = np.round(2 ** np.random.default_rng(0).uniform(4, 14, (40, 3)))
    places = prior.positions(KEY, vectors)
    places = centred(places, places)
    covariance = LIKENESS.covariance(places, places)

    def left(points: list[int]) -> float:
        measured = covariance[np.ix_(points, points)] + LIKENESS.noise**2 * np.eye(len(points))
        return float(
            np.trace(covariance - covariance[:, points] @ np.linalg.solve(measured, covariance[points]))
        )

    chosen = most_telling(prior, [KEY], vectors, 3)
    for count in range(3):
        others = [left([*chosen[:count], one]) for one in range(40) if one not in chosen[:count]]
        assert left(chosen[: count + 1]) == pytest.approx(min(others), rel=1e-9)
