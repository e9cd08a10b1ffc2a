"""docs/calibration.md names everything that a calibration says, and its examples run as they are written."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.calibrate import calibrate
from kernelcast.runtime.bundle.calibration import (
    CLASSES,
    TIMELINES,
    Calibration,
    CalibrationRun,
)
from kernelcast.validate.calibration import PRIOR, RESIDUALS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")


def test_every_field_is_explained() -> None:
    named = set(re.findall(r"`([a-z0-9_.-]+)`", PAGE))
    for record in (Calibration, CalibrationRun):
        assert {field.name for field in fields(record)} <= named
    assert set(TIMELINES) <= named
    assert all(one.value in PAGE for one in CLASSES)
    assert f"standard deviation of {PRIOR:g}:" in PAGE
    assert (len(RESIDUALS), round(min(RESIDUALS), 3), max(RESIDUALS)) == (6, 0.003, 0.1)
    assert "six\n  values from 0.3 to 10 %" in PAGE


def test_the_example_runs_as_it_is_written(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_bundle(name="here.kcast")
    monkeypatch.chdir(tmp_path)
    [runs] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    Path("site.toml").write_text(runs, encoding="utf-8")
    words = ["--bundle", "here.kcast", "--runs", "site.toml", "-o", "calibrated.kcast", "--force", "--json"]
    result = CliRunner().invoke(calibrate, words, catch_exceptions=False)
    document = json.loads(result.output)
    assert document["calibration"]["source"] == "our cluster"
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)


def test_what_is_said_of_the_published_steps_is_what_the_kept_results_say() -> None:
    kept = {}
    for timeline in TIMELINES:
        path = ROOT / "docs" / "validation" / f"calibration-{timeline}.json"
        kept[timeline] = json.loads(path.read_text(encoding="utf-8"))["result"]
        assert min(kept[timeline]["left_out_by_parameters"].values()) > 0.048
    simulated, closed = kept["simulate"], kept["closed-form"]
    for result in (simulated, closed):
        assert result["mean_abs_error"]["left_out"] > result["mean_abs_error"]["before"]
    assert sum(run["error_before"] > 0 for run in simulated["calibration"]["runs"]) == 1
    both = [run["error_before"] for run in closed["calibration"]["runs"] if "-8-" in run["label"]]
    assert [error > 0 for error in both] == [True, False]
