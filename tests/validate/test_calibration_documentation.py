"""docs/calibration.md names everything that a calibration says, and its examples run as they are written."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.calibrate import FORMAT, calibrate
from kernelcast.runtime.calibration import CLASSES, TIMELINES, Calibration, CalibrationRun, CalibrationUse
from kernelcast.validate.calibration import PRIOR, RESIDUALS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "calibration.md").read_text(encoding="utf-8")


def test_every_field_is_explained() -> None:
    named = set(re.findall(r"`([a-z0-9_.-]+)`", PAGE))
    for record in (Calibration, CalibrationRun, CalibrationUse):
        assert {field.name for field in fields(record)} <= named
    assert set(TIMELINES) <= named
    assert all(one.value in PAGE for one in CLASSES)
    assert f"`{FORMAT}`" in PAGE
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
    top = {"format", *re.findall(r"`([a-z_]+)`", PAGE.split(f"`{FORMAT}`")[1])}
    assert set(document) <= top
    assert document["calibration"]["source"] == "our cluster"
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)


def test_the_commands_are_those_of_the_figures() -> None:
    # The table's columns are the numbers of parameters that the command prints.
    header = next(line for line in PAGE.splitlines() if line.startswith("| timeline | without"))
    assert [int(number) for number in re.findall(r"\b([1-4])\b", header)] == [1, 2, 3, 4]
