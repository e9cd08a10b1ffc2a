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


GELU_ENTRY = "manifest: regressors[0]: regressor gelu (forward)"
ENTRY = ("regressors", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_in("format", to="kernelcast.bundle/1"),
            "manifest: format is 'kernelcast.bundle/1', expected 'kernelcast.bundle/3'; make",
        ),
        (set_in("colour", to=1), "manifest: field 'colour' is unknown, known are kernelcast_version"),
        (set_in("a\nb", to=1), "manifest: field 'a\\nb' is unknown"),
        (set_in("seed", to=True), "manifest: seed is true, expected a whole number"),
        (set_in("seed", to="7"), "manifest: seed is '7', expected a whole number"),
        (set_in("created_at", to="2026-01-01"), "manifest: created_at is '2026-01-01', expected ISO 8601"),
        (set_in("statistic", to="best"), "manifest: statistic is 'best', expected quiet or middle_five"),
        (set_in("statistic", to="middle_five"), "manifest: regressor gelu (forward) has statistic 'quiet'"),
        (set_in("dataset_digest", to=""), "manifest: dataset_digest is '', expected hex digits"),
        (set_in("regressors", to={}), "manifest: regressors is {}, expected a list"),
        (set_in("regressors", to=[3]), "manifest: regressors[0] is 3, expected a table"),
        (
            set_in(*ENTRY, "operator", to="gelo"),
            "manifest: regressors[0]: regressor gelo (forward): this version has no such operator",
        ),
        (
            set_in(*ENTRY, "direction", to="once"),
            "manifest: regressors[0]: regressor gelu (once): this version has no such operator",
        ),
        (
            set_in(*ENTRY, "direction", to="up"),
            "manifest: regressors[0]: regressor gelu (up): direction is 'up', expected forward, ",
        ),
        (
            set_in(*ENTRY, "features", to=["b", "l", "size"]),
            f"{GELU_ENTRY}: features [b (samples), l (tokens), size (elements)] differ from this",
        ),
        (
            set_in(*ENTRY, "units", to=["samples", "tokens", "bytes"]),
            f"{GELU_ENTRY}: features [b",
        ),
        (
            set_in(*ENTRY, "features", to=[1, 2, 3]),
            f"{GELU_ENTRY}: features[0] is 1, expected a text",
        ),
        (
            set_in(*ENTRY, "file", to="models/../x"),
            f"{GELU_ENTRY}: file is 'models/../x', expected",
        ),
        (
            set_in(*ENTRY, "sha256", to="00"),
            f"{GELU_ENTRY}: sha256 is '00', expected 64 hex digits",
        ),
        (set_in(*ENTRY, "sha256", to="0" * 64), "models/gelu.forward.onnx has 28 bytes and SHA-256"),
        (set_in(*ENTRY, "size_bytes", to=29), "models/gelu.forward.onnx has 28 bytes and SHA-256"),
        (
            set_in(*ENTRY, "rows", to=0),
            f"{GELU_ENTRY}: rows is 0, expected at least 1",
        ),
        (
            set_in(*ENTRY, "validation_error", to=-1),
            f"{GELU_ENTRY}: validation_error is -1.0",
        ),
        (
            set_in(*ENTRY, "validation_error", to=10**400),
            f"{GELU_ENTRY}: validation_error is inf",
        ),
        (
            set_in(*ENTRY, "training_range", to=[[1, 2]]),
            f"{GELU_ENTRY}: training_range is",
        ),
        (
            set_in(*ENTRY, "training_range", 0, to=[2, 1]),
            f"{GELU_ENTRY}: training_range is",
        ),
        (
            set_in(*ENTRY, "training_range", 0, to=[1]),
            f"{GELU_ENTRY}: training_range[0] is [1], expected a list of 2",
        ),
        (
            set_in(*ENTRY, "hyperparameters", to={"a": [1]}),
            f"{GELU_ENTRY}: hyperparameters.a is [1]",
        ),
        (
            set_in(*ENTRY, "extrapolation_error", to=-1),
            f"{GELU_ENTRY}: extrapolation_error is -1.0",
        ),
        (
            set_in(*ENTRY, "extrapolation_error", to="1"),
            f"{GELU_ENTRY}: extrapolation_error is '1', expected a number or null",
        ),
        (
            set_in(*ENTRY, "interval_coverage", to=1.5),
            f"{GELU_ENTRY}: interval_coverage is 1.5",
        ),
        (
            set_in(*ENTRY, "interval", to=3),
            f"{GELU_ENTRY}: interval is 3, expected a table",
        ),
        (
            set_in(*ENTRY, "interval", "level", to=1),
            f"{GELU_ENTRY}: interval.level is 1.0, expected",
        ),
        (
            set_in(*ENTRY, "interval", "method", to="guess"),
            f"{GELU_ENTRY}: interval.method is 'guess'",
        ),
        (
            set_in(*ENTRY, "interval", "by", to="size"),
            f"{GELU_ENTRY}: interval.size_bounds is ()",
        ),
        (
            set_in(*ENTRY, "interval", "size_bounds", to=[2.0]),
            f"{GELU_ENTRY}: interval.size_bounds is (2.0,)",
        ),
        (
            set_in(*ENTRY, "interval", "size_bounds", to=["2"]),
            f"{GELU_ENTRY}: interval.size_bounds[0] is '2', expected a number",
        ),
        (
            set_in(*ENTRY, "interval", "layouts", to=[[1, 2]]),
            f"{GELU_ENTRY}: interval.layouts is ((1, 2),)",
        ),
        (
            set_in(*ENTRY, "interval", "layouts", to=[[1, 2.5]]),
            f"{GELU_ENTRY}: interval.layouts[0][1] is 2.5, expected a whole number",
        ),
        (
            set_in(*ENTRY, "interval", "log_half_widths", to=[-1]),
            f"{GELU_ENTRY}: interval.log_half_widths is (-1",
        ),
        (
            set_in(*ENTRY, "interval", "log_half_widths", to=[]),
            f"{GELU_ENTRY}: interval.log_half_widths is ()",
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
            f"{GELU_ENTRY}: interval.by is 'layout', expected size (no collective)",
        ),
        (
            set_in(*ENTRY, "layouts", to=[[1, 2]]),
            f"{GELU_ENTRY}: layouts is ((1, 2),), expected distinct",
        ),
        (
            set_in(*ENTRY, "role_errors", to={"": -0.1}),
            f"{GELU_ENTRY}: role_errors[''] is -0.1, expected a fraction",
        ),
        (
            set_in(*ENTRY, "role_errors", to={"up": "0.1"}),
            f"{GELU_ENTRY}: role_errors.up is '0.1', expected a number",
        ),
        (
            set_in(*ENTRY, "role_errors", to=[]),
            f"{GELU_ENTRY}: role_errors is [], expected",
        ),
        (
            set_in(*ENTRY, "equal_features", to=["b", "l"]),
            f"{GELU_ENTRY}: equal_features is ('b', 'l'), expected two features of the operator",
        ),
        (
            set_in(*ENTRY, "equal_features", to=["b", 1]),
            f"{GELU_ENTRY}: equal_features[1] is 1, expected a text",
        ),
        (
            lambda values: values["regressors"][0].pop("processes_per_node"),
            f"{GELU_ENTRY}: processes_per_node is missing, expected a whole number",
        ),
        (
            set_in(*ENTRY, "table_digest", to="z"),
            f"{GELU_ENTRY}: table_digest is 'z', expected hex digits",
        ),
        (
            set_in(*ENTRY, "recipe_digest", to=""),
            f"{GELU_ENTRY}: recipe_digest is '', expected hex digits",
        ),
        (set_in("compute", 0, "digest", to="ff"), "manifest: compute[0]: digest or description does not fit"),
        (
            set_in("compute", 0, "fields", "cores", to=4),
            "manifest: compute[0]: digest or description does not fit",
        ),
        (set_in("compute", 0, "fields", "cores", to="2"), "manifest: compute[0].cores is '2', expected"),
        (
            set_in("compute", 0, "fields", "serial", to=1),
            "manifest: compute[0]: field 'serial' is unknown",
        ),
        (set_in("compute", 0, "fields", to=3), "manifest: compute[0].fields is 3, expected a table"),
        (
            set_in("software", 0, "fields", "environment", to=[1]),
            "manifest: software[0].environment[0] is 1, expected a text",
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
