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
from kernelcast.runtime.operators import Direction
from tests.runtime.bundle.conftest import COPY, GELU
from tests.runtime.bundle.zipped import rezipped

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
Make = Callable[..., Any]


def test_there_and_back(small: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "a.kcast"
    digest = write_bundle(path, small, {"models/gelu.forward.onnx": COPY})
    bundle = read_bundle(path)
    assert bundle.manifest == small
    assert bundle.digest == digest
    assert dict(bundle.files) == {bundle.entries[GELU].file: COPY}
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
        ({"manifest.json": b"[]"}, "manifest: the value is [], expected a table"),
        (
            {"manifest.json": b"{}"},
            "manifest: format is null, expected 'kernelcast.bundle/3'; make the bundle again",
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
    with pytest.raises(DataError, match=r": 'manifest\.json' is compressed or there twice$"):
        read_bundle(path)
    path.write_bytes(content[: content.index(b"PK\x01\x02")] + content)
    with pytest.raises(DataError, match=r": 'manifest\.json' is compressed or there twice$"):
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
