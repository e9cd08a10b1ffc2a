"""A bundle whose every operator has a time of its own that depends on the workload, so that mix-ups show."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS


@pytest.fixture
def varied_bundle(make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]) -> Path:
    """Operator i takes i + 1 µs and something for every feature."""
    times = {}
    for number, operator in enumerate(OPERATORS.values(), start=1):
        for turn, direction in enumerate(operator.directions):
            weights = [1e-4 * (number + 3 * turn + column) for column in range(len(operator.features))]
            times[operator.name, direction] = linear_model(weights, number + turn / 3)
    return make_bundle(times, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)])


@pytest.fixture
def estimator(varied_bundle: Path) -> Estimator:
    """An estimator of that bundle."""
    return Estimator.load(varied_bundle)
