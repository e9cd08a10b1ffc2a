"""Bundles whose every operator has a time of its own that depends on the workload, so that mix-ups show."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from math import log
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Estimator, read_bundle
from kernelcast.runtime.bundle.calibration import Calibration, CalibrationRun
from kernelcast.runtime.bundle.file import model_file, write_bundle
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS, Direction

Model = Callable[..., bytes]


def model_of(linear_model: Model, operator: str, direction: Direction, level: int = 1) -> bytes:
    """Operator i takes i µs and something for every feature; concurrent processes slow each by its own factor."""
    number = list(OPERATORS).index(operator) + 1
    turn = list(OPERATORS[operator].costs).index(direction)
    factor = 1 + (level - 1) * (0.3 + number / 100)
    features = len(OPERATORS[operator].features)
    weights = [1e-4 * (number + 3 * turn + column) * factor for column in range(features)]
    return linear_model(weights, (number + turn / 3) * factor)


@pytest.fixture
def make_varied(make_bundle: Callable[..., Path], linear_model: Model) -> Callable[..., Path]:
    """Writes such a bundle; options as `make_bundle`'s."""
    times = {
        (operator.name, direction): model_of(linear_model, operator.name, direction)
        for operator in OPERATORS.values()
        for direction in operator.directions
    }

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


@pytest.fixture
def make_calibrated(varied_bundle: Path, linear_model: Model) -> Callable[[Any], Path]:
    """Writes such a bundle measured with 1, 2 and 4 processes per node, calibrated for a timeline."""

    def make(timeline: Any) -> Path:
        alone = read_bundle(varied_bundle)
        entries, files = [], {}
        for entry in alone.manifest.regressors:
            for level in (1,) if OPERATORS[entry.operator].is_collective else (1, 2, 4):
                model = model_of(linear_model, entry.operator, entry.direction, level)
                one = replace(
                    entry,
                    processes_per_node=level,
                    file=model_file(entry.operator, entry.direction, level),
                    sha256=sha256(model).hexdigest(),
                    size_bytes=len(model),
                )
                entries.append(one)
                files[one.file] = model
        calibration = Calibration(
            timeline=timeline,
            source="a test",
            source_digest="ab",
            measured_at="2026-01-01T00:00:00+00:00",
            kernelcast_version="0.1.0",
            parameters=1,
            log_factors=tuple(map(log, (1.1, 0.9, 1.3, 2.0))),
            log_spread=((0.01,),) * 4,
            residual=0.02,
            prior=0.05,
            runs=(
                CalibrationRun(
                    label="one", measured_s=1.5, error_before=-0.1, error_left_out=None, error_after=-0.05
                ),
            ),
        )
        path = varied_bundle.with_name(f"{timeline}.kcast")
        write_bundle(path, replace(alone.manifest, regressors=tuple(entries), calibration=calibration), files)
        return path

    return make
