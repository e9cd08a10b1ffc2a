"""A correction by a few points: what it says at them, near them and far from them, and what is refused."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime.bundle.transfer import Correction, positions
from kernelcast.runtime.errors import DataError

TIMES_US = np.array([10.0, 100.0, 1000.0])
ROOFLINE_US = np.array([8.0, 60.0, 500.0])
VECTORS = np.array([[8.0, 64.0], [64.0, 128.0], [512.0, 256.0]])
KNOTS = tuple(map(tuple, positions(TIMES_US, ROOFLINE_US, VECTORS).tolist()))
CORRECTION = Correction(knots=KNOTS, weights=(0.2, 0.1, 0.3))


def test_a_correction_is_the_same_after_manifest_json() -> None:
    nested = replace(CORRECTION, earlier=CORRECTION)
    again = Correction.from_dict(json.loads(json.dumps(nested.to_dict())))
    assert again == nested
    assert again.points == 3


def test_how_alike_workloads_are_by_default() -> None:
    """Bundles that were shipped are read with these scales: other ones would change what they answer."""
    found = CORRECTION.log_factors(TIMES_US * [1.1, 2, 0.5], ROOFLINE_US, VECTORS + np.array([3, 5]))
    assert found == pytest.approx([0.7159, 0.7426, 0.7448], abs=1e-4)


def test_far_from_all_points_it_is_an_offset() -> None:
    """No line is carried on: far outside, all that is left is the same for every workload."""
    far = [
        CORRECTION.log_factors(TIMES_US[:1] * scale, ROOFLINE_US[:1] * scale, VECTORS[:1] * scale)
        for scale in (1e20, 1e25)
    ]
    assert far[0] == pytest.approx(far[1], abs=1e-6)


def test_an_earlier_correction_is_applied_first() -> None:
    twice = replace(CORRECTION, earlier=CORRECTION)
    once = CORRECTION.log_factors(TIMES_US, ROOFLINE_US, VECTORS)
    asked = CORRECTION.log_factors(TIMES_US * np.exp(once), ROOFLINE_US, VECTORS)
    assert twice.log_factors(TIMES_US, ROOFLINE_US, VECTORS) == pytest.approx(once + asked)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weights": []}, "weights"),
        ({"weights": [0.1]}, "knots"),
        ({"weights": [0.1, 0.2, float("nan")]}, "weights"),
        ({"weights": [0.1, 0.2, 1e9]}, "weights"),
        ({"knots": [[1.0, 0.0], [1.0], [1.0]]}, "knots"),
        ({"knots": [[1.0, 0.0, float("inf")]] * 3}, "knots"),
        ({"knots": "many"}, "knots"),
        ({"likeness": {}}, "likeness"),
        ({"more": 1}, "more"),
    ],
)
def test_what_cannot_be_a_correction_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        Correction.from_dict({**CORRECTION.to_dict(), **changes})


@pytest.mark.parametrize("name", ["noise", "time_scale", "offset"])
def test_a_likeness_has_no_scale_of_zero_and_no_negative_variance(name: str) -> None:
    values = CORRECTION.to_dict()
    values["likeness"][name] = -1.0 if name == "offset" else 0.0
    with pytest.raises(DataError, match=name):
        Correction.from_dict(values)
