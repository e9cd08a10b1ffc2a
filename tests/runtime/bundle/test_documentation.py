"""docs/bundle.md names everything that a bundle holds, and its Python example runs as it is written."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime.answers.predictor import INPUT_NAME, OUTPUT_NAMES
from kernelcast.runtime.bundle.file import FORMAT, Manifest, RegressorEntry
from kernelcast.runtime.bundle.regressor_entry import GROUPINGS, METHODS, Interval
from kernelcast.runtime.bundle.signature import NAMESPACE

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "bundle.md").read_text(encoding="utf-8")


def test_every_field_is_explained() -> None:
    named = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
    for record in (Manifest, RegressorEntry, Interval):
        assert {field.name for field in fields(record)} <= named
    assert {INPUT_NAME, *OUTPUT_NAMES, *METHODS, *GROUPINGS} <= named
    assert f"`{FORMAT}`" in PAGE
    assert f"`{NAMESPACE}`" in PAGE


def test_the_python_example(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_bundle(name="here.kcast")
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert np.array([names[name] for name in OUTPUT_NAMES]).tolist() == [10.0, 5.0, 20.0]
