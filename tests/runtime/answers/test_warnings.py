"""Warnings of answers outside the measured range, and by regressors that do not follow their own measurements."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.answers.asking import ask
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.warnings import (
    LARGE_ERROR,
    MOST_DEVICES,
    devices_warning,
    large_error_warning,
    range_warnings,
)
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
GELU, NORM = ("gelu", Direction.FORWARD), ("layer_norm", Direction.FORWARD)
ASKED = ((GELU, (1, 2, 3), ""), (NORM, (1, 2, 3), ""))


@pytest.mark.parametrize(("error", "warns"), [(LARGE_ERROR, False), (0.4, True)])
def test_it_warns_of_its_own_answers(make_bundle: Make, tmp_path: Path, error: float, warns: bool) -> None:
    read = read_bundle(make_bundle())
    entries = tuple(
        replace(entry, validation_error=error) if entry.key == GELU else entry
        for entry in read.manifest.regressors
    )
    path = tmp_path / "off.kcast"
    write_bundle(path, replace(read.manifest, regressors=entries), read.files)
    found = ask(Predictor(read_bundle(path)), ASKED).concerned
    warning = large_error_warning(GELU, error)
    assert found == ({warning: {ASKED[0]}} if warns else {})
    assert ask(Predictor(read_bundle(path)), ASKED, with_warnings=False).concerned == {}


def test_it_is_doubtful() -> None:
    warning = large_error_warning(GELU, 0.4)
    assert warning.brief == "gelu up to 40 % off on held-out measurements"
    assert warning.to_dict() == {
        "cause": "doubtful",
        "kind": "large_error",
        "operator": "gelu",
        "direction": "forward",
        "error": 0.4,
        "message": "gelu (forward): the regressor is 40% off on held-out measurements",
    }


def test_more_devices_than_any_published_step_had() -> None:
    assert devices_warning(MOST_DEVICES) is None
    warning = devices_warning(2 * MOST_DEVICES)
    assert warning is not None
    assert warning.to_dict() == {
        "cause": "extrapolated",
        "kind": "devices",
        "asked": 32768,
        "measured": 16384,
        "message": "32,768 devices, more than the 16,384 of the largest published steps: collectives of such groups, "
        "stragglers and failures were never compared",
    }


def test_workloads_outside_the_training_range_are_named(make_bundle: Make) -> None:
    entry = read_bundle(make_bundle(largest=100)).entries[GELU]
    found = range_warnings(entry, [(1, 100, 100), (0, 100, 5120), (7, 7, 5120)])
    warnings = list(found)
    assert list(found.values()) == [((0, 100, 5120),), ((0, 100, 5120), (7, 7, 5120))]
    assert [(w.values["feature"], w.values["asked"]) for w in warnings] == [("b", 0), ("width", 5120)]
    assert str(warnings[1]) == "gelu (forward): width = 5120 is outside the training range, 1 to 100"
    assert warnings[1].to_dict() == {
        "cause": "extrapolated",
        "operator": "gelu",
        "direction": "forward",
        "feature": "width",
        "asked": 5120,
        "range": [1.0, 100.0],
        "message": str(warnings[1]),
    }


def test_layouts_never_measured_are_named(regressor: Callable[..., RegressorEntry]) -> None:
    key = "all_reduce", Direction.ONCE
    entry = replace(regressor(key, b"model", largest=100), layouts=((1, 4), (2, 2)))
    assert range_warnings(entry, [(10, 1, 4), (10, 2, 2)]) == {}
    # Each number alone is within its range; together they were never measured.
    warnings = list(range_warnings(entry, [(10, 1, 2), (20, 1, 2), (10, 2, 4)]))
    assert [str(warning) for warning in warnings] == [
        "all_reduce (once): layout 1 × 2 (nodes × devices per node) was never measured, only 1 × 4, 2 × 2",
        "all_reduce (once): layout 2 × 4 (nodes × devices per node) was never measured, only 1 × 4, 2 × 2",
    ]
    assert warnings[0].to_dict() == {
        "cause": "extrapolated",
        "operator": "all_reduce",
        "direction": "once",
        "feature": "layout",
        "asked": [1, 2],
        "measured": [[1, 4], [2, 2]],
        "message": str(warnings[0]),
    }
