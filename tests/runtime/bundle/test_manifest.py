"""Every field of a manifest is checked, and the message names it."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import DataError, read_bundle
from tests.runtime.bundle.zipped import rezipped


def with_manifest(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        values = json.loads(archive.read("manifest.json"))
    change(values)
    return rezipped(content, {"manifest.json": json.dumps(values).encode()})


def set_in(*where: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(values: Any) -> None:
        for step in where[:-1]:
            values = values[step]
        values[where[-1]] = to

    return change


ENTRY = ("regressors", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_in("format", to="kernelcast.bundle/1"),
            "manifest: format is 'kernelcast.bundle/1', expected 'kernelcast.bundle/3'; make",
        ),
        (set_in("colour", to=1), "manifest: field 'colour' is unknown, expected some of kernelcast_version"),
        (set_in("a\nb", to=1), "manifest: field 'a\\nb' is unknown"),
        (set_in("seed", to=True), "manifest: seed is True, expected a whole number"),
        (set_in("seed", to="7"), "manifest: seed is '7', expected a whole number"),
        (set_in("created_at", to="2026-01-01"), "manifest: created_at is '2026-01-01', expected ISO 8601"),
        (set_in("statistic", to="best"), "manifest: statistic is 'best', expected quiet or middle_five"),
        (set_in("statistic", to="middle_five"), "manifest: regressor gelu (forward) has statistic 'quiet'"),
        (set_in("dataset_digest", to=""), "manifest: dataset_digest is '', expected hex digits"),
        (set_in("regressors", to={}), "manifest: regressors is {}, expected a list"),
        (set_in("regressors", to=[3]), "manifest: regressor: expected a table, found int"),
        (
            set_in(*ENTRY, "operator", to="gelo"),
            "manifest: regressor gelo (forward): this version has no such operator",
        ),
        (
            set_in(*ENTRY, "direction", to="once"),
            "manifest: regressor gelu (once): this version has no such operator",
        ),
        (
            set_in(*ENTRY, "direction", to="up"),
            "manifest: regressor gelu (up): direction is 'up', expected forward or",
        ),
        (
            set_in(*ENTRY, "features", to=["b", "l", "size"]),
            "manifest: regressor gelu (forward): features [b (samples), l (tokens), size (elements)] differ from this",
        ),
        (
            set_in(*ENTRY, "units", to=["samples", "tokens", "bytes"]),
            "manifest: regressor gelu (forward): features [b",
        ),
        (
            set_in(*ENTRY, "features", to=[1, 2, 3]),
            "manifest: regressor gelu (forward): features holds 1, expected a text",
        ),
        (
            set_in(*ENTRY, "file", to="models/../x"),
            "manifest: regressor gelu (forward): file is 'models/../x', expected",
        ),
        (
            set_in(*ENTRY, "sha256", to="00"),
            "manifest: regressor gelu (forward): sha256 is '00', expected 64 hex digits",
        ),
        (set_in(*ENTRY, "sha256", to="0" * 64), "models/gelu.forward.onnx has 28 bytes and SHA-256"),
        (set_in(*ENTRY, "size_bytes", to=29), "models/gelu.forward.onnx has 28 bytes and SHA-256"),
        (set_in(*ENTRY, "rows", to=0), "manifest: regressor gelu (forward): rows is 0, expected at least 1"),
        (
            set_in(*ENTRY, "validation_error", to=-1),
            "manifest: regressor gelu (forward): validation_error is -1.0",
        ),
        (
            set_in(*ENTRY, "validation_error", to=10**400),
            "manifest: regressor gelu (forward): validation_error is inf",
        ),
        (
            set_in(*ENTRY, "training_range", to=[[1, 2]]),
            "manifest: regressor gelu (forward): training_range is",
        ),
        (
            set_in(*ENTRY, "training_range", 0, to=[2, 1]),
            "manifest: regressor gelu (forward): training_range is",
        ),
        (
            set_in(*ENTRY, "training_range", 0, to=[1]),
            "manifest: regressor gelu (forward): training_range holds [1], expected a list of 2",
        ),
        (
            set_in(*ENTRY, "hyperparameters", to={"a": [1]}),
            "manifest: regressor gelu (forward): hyperparameters.a is [1]",
        ),
        (
            set_in(*ENTRY, "extrapolation_error", to=-1),
            "manifest: regressor gelu (forward): extrapolation_error is -1.0",
        ),
        (
            set_in(*ENTRY, "extrapolation_error", to="1"),
            "manifest: regressor gelu (forward): extrapolation_error is '1', expected a number or null",
        ),
        (
            set_in(*ENTRY, "interval_coverage", to=1.5),
            "manifest: regressor gelu (forward): interval_coverage is 1.5",
        ),
        (
            set_in(*ENTRY, "interval", to=3),
            "manifest: regressor gelu (forward): interval: expected a table, found int",
        ),
        (
            set_in(*ENTRY, "interval", "level", to=1),
            "manifest: regressor gelu (forward): interval: level is 1.0, expected",
        ),
        (
            set_in(*ENTRY, "interval", "method", to="guess"),
            "manifest: regressor gelu (forward): interval: method is 'guess'",
        ),
        (
            set_in(*ENTRY, "interval", "by", to="size"),
            "manifest: regressor gelu (forward): interval: size_bounds is ()",
        ),
        (
            set_in(*ENTRY, "interval", "size_bounds", to=[2.0]),
            "manifest: regressor gelu (forward): interval: size_bounds is (2.0,)",
        ),
        (
            set_in(*ENTRY, "interval", "size_bounds", to=["2"]),
            "manifest: regressor gelu (forward): interval: size_bounds holds '2', expected a number",
        ),
        (
            set_in(*ENTRY, "interval", "layouts", to=[[1, 2]]),
            "manifest: regressor gelu (forward): interval: layouts is ((1, 2),)",
        ),
        (
            set_in(*ENTRY, "interval", "layouts", to=[[1, 2.5]]),
            "manifest: regressor gelu (forward): interval: layouts holds 2.5, expected a whole number",
        ),
        (
            set_in(*ENTRY, "interval", "log_half_widths", to=[-1]),
            "manifest: regressor gelu (forward): interval: log_half_widths is (-1",
        ),
        (
            set_in(*ENTRY, "interval", "log_half_widths", to=[]),
            "manifest: regressor gelu (forward): interval: log_half_widths is ()",
        ),
        (
            set_in(
                *ENTRY,
                "interval",
                to={
                    "method": "cross_conformal",
                    "level": 0.9,
                    "by": "layout",
                    "size_bounds": [],
                    "layouts": [[1, 2]],
                    "log_half_widths": [0.1, 0.2],
                },
            ),
            "manifest: regressor gelu (forward): interval.by is 'layout', expected layout for collectives only",
        ),
        (
            set_in(*ENTRY, "layouts", to=[[1, 2]]),
            "manifest: regressor gelu (forward): layouts is ((1, 2),), expected distinct",
        ),
        (
            set_in(*ENTRY, "role_errors", to={"": -0.1}),
            "manifest: regressor gelu (forward): role_errors[''] is -0.1, expected a fraction",
        ),
        (
            set_in(*ENTRY, "role_errors", to={"up": "0.1"}),
            "manifest: regressor gelu (forward): role_errors['up'] is '0.1', expected a fraction",
        ),
        (
            set_in(*ENTRY, "role_errors", to=[]),
            "manifest: regressor gelu (forward): role_errors is [], expected",
        ),
        (
            set_in(*ENTRY, "equal_features", to=["b", "l"]),
            "manifest: regressor gelu (forward): equal_features is ('b', 'l'), expected two features of the operator",
        ),
        (
            set_in(*ENTRY, "equal_features", to=["b", 1]),
            "manifest: regressor gelu (forward): equal_features holds 1, expected a text",
        ),
        (
            lambda values: values["regressors"][0].pop("processes_per_node"),
            "manifest: regressor gelu (forward): processes_per_node is missing, expected a whole number",
        ),
        (
            set_in(*ENTRY, "table_digest", to="z"),
            "manifest: regressor gelu (forward): table_digest is 'z', expected hex digits",
        ),
        (
            set_in(*ENTRY, "recipe_digest", to=""),
            "manifest: regressor gelu (forward): recipe_digest is '', expected hex digits",
        ),
        (set_in("compute", 0, "digest", to="ff"), "manifest compute: digest or description does not fit"),
        (
            set_in("compute", 0, "fields", "cores", to=4),
            "manifest compute: digest or description does not fit",
        ),
        (set_in("compute", 0, "fields", "cores", to="2"), "manifest compute: cores is '2', expected"),
        (
            set_in("compute", 0, "fields", "serial", to=1),
            "manifest compute: field 'serial' is unknown",
        ),
        (set_in("compute", 0, "fields", to=3), "manifest compute: fields is 3, expected a table"),
        (
            set_in("software", 0, "fields", "environment", to=[1]),
            "manifest software: environment holds 1, expected a text",
        ),
        (
            lambda values: values["regressors"].append(values["regressors"][0]),
            "manifest: two regressors answer gelu",
        ),
        (
            lambda values: values.update(kernelcast_version="0.1.1"),
            "its bytes differ from what kernelcast writes",
        ),
    ],
)
def test_wrong_manifests(
    content: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tmp_path / "changed.kcast"
    path.write_bytes(with_manifest(content, change))
    with pytest.raises(DataError) as caught:
        read_bundle(path)
    assert str(caught.value).startswith(f"bundle {path}: {message}")
    assert "\n" not in str(caught.value)
