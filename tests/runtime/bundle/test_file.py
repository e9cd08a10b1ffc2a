"""The bundle file: same input, same bytes; nothing wrong with it goes unnoticed."""

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import DataError, UsageError, read_bundle
from kernelcast.runtime.bundle.file import Manifest, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction

GELU, COPY = ("gelu", Direction.FORWARD), b"not a real model, only bytes"
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
Make = Callable[..., Any]


@pytest.fixture
def small(regressor: Make, manifest: Make) -> Manifest:
    """One regressor and one fingerprint of each kind."""
    filled = replace(
        manifest([regressor(GELU, COPY)], fabric=[FabricFingerprint(backend="gloo", gpus_per_node=2)]),
        compute=(ComputeFingerprint(kind="cpu", device_name="Some CPU", cores=2, caches=("L1d 32 KiB",)),),
        software=(SoftwareFingerprint(torch="2.13.0", environment=("OMP_NUM_THREADS=1",)),),
    )
    assert isinstance(filled, Manifest)
    return filled


@pytest.fixture
def content(small: Manifest, tmp_path: Path) -> bytes:
    """The bytes of a valid bundle."""
    write_bundle(tmp_path / "valid.kcast", small, {"models/gelu.forward.onnx": COPY})
    return (tmp_path / "valid.kcast").read_bytes()


def test_there_and_back(small: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "a.kcast"
    digest = write_bundle(path, small, {"models/gelu.forward.onnx": COPY})
    bundle = read_bundle(path)
    assert bundle.manifest == small
    assert bundle.digest == digest
    assert bundle.models == {GELU: COPY}
    assert bundle.entries[GELU].training_range == ((1.0, 1e12),) * 3
    assert bundle.manifest.compute[0].description == "Some CPU, 2 cores, 0 thread(s) per process"


def test_same_input_same_bytes_whatever_the_order(regressor: Make, manifest: Make, tmp_path: Path) -> None:
    rope = regressor(("rope", Direction.BACKWARD), b"other")
    gelu = regressor(GELU, COPY)
    write_bundle(tmp_path / "a", manifest([gelu, rope]), {gelu.file: COPY, rope.file: b"other"})
    write_bundle(tmp_path / "b", manifest([rope, gelu]), {rope.file: b"other", gelu.file: COPY})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_any_zip_tool_reads_it(content: bytes, small: Manifest) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["manifest.json", "models/gelu.forward.onnx"]
        values = json.loads(archive.read("manifest.json"))
    assert values == small.to_dict()
    assert values["format"] == "kernelcast.bundle/3"
    assert values["fabric"][0]["digest"] == small.fabric[0].digest


@same_folder
@given(data=st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject, content: bytes, tmp_path: Path) -> None:
    position = data.draw(st.integers(0, len(content) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(content)
    changed[position] ^= flip
    (tmp_path / "changed.kcast").write_bytes(changed)
    with pytest.raises(DataError, match=r"^bundle .*changed\.kcast: "):
        read_bundle(tmp_path / "changed.kcast")


@same_folder
@given(data=st.data())
def test_no_cut_or_addition_goes_unnoticed(data: st.DataObject, content: bytes, tmp_path: Path) -> None:
    length = data.draw(st.integers(0, len(content) - 1))
    extra = data.draw(st.binary(min_size=1, max_size=30))
    for changed in (content[:length], content[length:] if length else b"", content + extra, extra + content):
        (tmp_path / "changed.kcast").write_bytes(changed)
        with pytest.raises(DataError, match=r"^bundle .*changed\.kcast: "):
            read_bundle(tmp_path / "changed.kcast")


def rezipped(content: bytes, changes: dict[str, bytes | None], method: int = zipfile.ZIP_STORED) -> bytes:
    """The bundle's members in a fresh zip, some replaced, added, or (None) left out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", method) as new:
        members: dict[str, bytes | None] = {name: old.read(name) for name in old.namelist()}
        for name, data in (members | changes).items():
            if data is not None:
                new.writestr(name, data)
    return buffer.getvalue()


def with_manifest(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        values = json.loads(archive.read("manifest.json"))
    change(values)
    return rezipped(content, {"manifest.json": json.dumps(values).encode()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models/gelu.forward.onnx": None}, "models/gelu.forward.onnx is in the manifest, but missing"),
        ({"models/a\nb.onnx": b"x"}, "models/a\\nb.onnx is not in the manifest"),
        ({"models/extra.onnx": b"x"}, "models/extra.onnx is not in the manifest"),
        ({"models/gelu.forward.onnx": COPY[::-1]}, "models/gelu.forward.onnx has 28 bytes and SHA-256 "),
        ({"manifest.json": None}, "no manifest.json inside"),
        ({"manifest.json": b"{"}, "manifest.json is not JSON ("),
        ({"manifest.json": b"[" * 100_000}, "manifest.json is not JSON ("),
        ({"manifest.json": b"[]"}, "manifest: expected a table, found list"),
        (
            {"manifest.json": b"{}"},
            "manifest: format is None, expected 'kernelcast.bundle/3'; make the bundle again",
        ),
        ({"manifest.json": b" " * (2**24 + 1)}, "manifest.json is larger than 16777216 bytes"),
    ],
)
def test_wrong_members(
    content: bytes, tmp_path: Path, changes: dict[str, bytes | None], message: str
) -> None:
    path = tmp_path / "changed.kcast"
    path.write_bytes(rezipped(content, changes))
    with pytest.raises(DataError) as caught:
        read_bundle(path)
    assert str(caught.value).startswith(f"bundle {path}: {message}")


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


def test_files_that_are_no_bundles(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.kcast"
    with pytest.raises(DataError, match=r"x\.kcast: no such file$"):
        read_bundle(path)
    with pytest.raises(DataError, match=r": cannot be read \("):
        read_bundle(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r": not a bundle \(expected a zip file, 0 bytes found\)$"):
        read_bundle(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r": cut or damaged \("):
        read_bundle(path)
    # Compressed members, and so zip bombs, are refused unread.
    path.write_bytes(rezipped(content, {"manifest.json": b" " * 10**7}, zipfile.ZIP_DEFLATED))
    with pytest.raises(DataError, match=r": its members claim to be larger than the file$"):
        read_bundle(path)
    noise = bytes(range(256)) * 8
    path.write_bytes(rezipped(content, {"manifest.json": noise[::-1], "z": noise}, zipfile.ZIP_DEFLATED))
    with pytest.raises(DataError, match=r": its members|manifest\.json is compressed or there twice$"):
        read_bundle(path)


def test_models_and_manifest_must_belong_together(small: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "x.kcast"
    for models, message in (
        ({}, r"models/gelu\.forward\.onnx is in the manifest, but missing$"),
        ({"models/gelu.forward.onnx": COPY, "y": b""}, "y is not in the manifest$"),
        ({"models/gelu.forward.onnx": b"x"}, "has 1 bytes and SHA-256"),
    ):
        with pytest.raises(UsageError, match=message):
            write_bundle(path, small, models)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_half(small: Manifest, tmp_path: Path) -> None:
    models = {"models/gelu.forward.onnx": COPY}
    with pytest.raises(DataError, match=r"none/x\.kcast: cannot be written \("):
        write_bundle(tmp_path / "none" / "x.kcast", small, models)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder: is a folder, expected a file"):
        write_bundle(tmp_path / "folder", small, models)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_hyperparameters_are_plain_values(small: Manifest) -> None:
    for value in (float("nan"), [1], {"a": 1}):
        with pytest.raises(DataError, match=r"^regressor gelu \(forward\): hyperparameters\.x is "):
            replace(small.regressors[0], hyperparameters={"x": value})


def test_reading_a_bundle_needs_only_the_standard_library(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "valid.kcast").write_bytes(content)
    program = (
        "import sys; from kernelcast.runtime import read_bundle; read_bundle(sys.argv[1]); "
        "print({'numpy', 'onnxruntime'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "valid.kcast")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"
