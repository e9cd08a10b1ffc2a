"""A bundle whose every operator has a time of its own that depends on the workload, so that mix-ups show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS


@pytest.fixture
def make_varied(make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]) -> Callable[..., Path]:
    """Writes a bundle whose operator i takes i + 1 µs and something for every feature; options as `make_bundle`'s."""
    times = {}
    for number, operator in enumerate(OPERATORS.values(), start=1):
        for turn, direction in enumerate(operator.directions):
            weights = [1e-4 * (number + 3 * turn + column) for column in range(len(operator.features))]
            times[operator.name, direction] = linear_model(weights, number + turn / 3)

    def make(**options: Any) -> Path:
        return make_bundle(times, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)], **options)

    return make


@pytest.fixture
def varied_bundle(make_varied: Callable[..., Path]) -> Path:
    """Such a bundle that lacks nothing."""
    return make_varied()


@pytest.fixture
def estimator(varied_bundle: Path) -> Estimator:
    """An estimator of that bundle."""
    return Estimator.load(varied_bundle)
