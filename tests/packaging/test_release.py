"""A release: two builds are equal byte for byte, and what describes it agrees."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_changelog_and_citation_have_the_version() -> None:
    newest, *_ = re.findall(
        r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert newest == (PROJECT["version"], str(citation["date-released"]))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_every_extra_is_in_all() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    listed = set(re.fullmatch(r"kernelcast\[(.*)\]", everything)[1].split(","))  # type: ignore[index]
    assert listed == set(extras) - {"all", "dev", "docs"}


@pytest.mark.slow
def test_two_builds_are_equal(built: tuple[Path, Path], tmp_path: Path) -> None:
    # What differs between machines: time zone, mask of modes, order of hashes, and when the files were written.
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path / "other", filter="data")
        epoch_s = archive.getmembers()[0].mtime
    (source,) = (tmp_path / "other").iterdir()
    program = f"import os, runpy, sys; os.umask(0o077); sys.argv[1:] = [{str(tmp_path / 'out')!r}]; "
    program += f"runpy.run_path({str(ROOT / 'release' / 'dist.py')!r}, run_name='__main__')"
    other = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": str(epoch_s)}
    subprocess.run([sys.executable, "-c", program], env=os.environ | other, check=True, capture_output=True)
    for one in built:
        assert (tmp_path / "out" / one.name).read_bytes() == one.read_bytes(), one.name
    # From the archive itself, where there is no clone, the wheel is the same.
    command = [sys.executable, str(source / "release" / "dist.py"), str(tmp_path / "again")]
    subprocess.run(command, env=os.environ | other, check=True, capture_output=True)
    assert (tmp_path / "again" / built[1].name).read_bytes() == built[1].read_bytes()


@pytest.mark.slow
def test_metadata(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
        typed = {one for one in wheel.namelist() if one.endswith("/py.typed")}
        packages = {
            f"{one.split('/')[0]}/{one.split('/')[1]}/py.typed"
            for one in wheel.namelist()
            if one.startswith("kernelcast/") and one.count("/") > 1
        }
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Classifier")) == set(PROJECT["classifiers"])
    assert [one.partition(", ")[2] for one in metadata.get_all("Project-URL")] == list(
        PROJECT["urls"].values()
    )
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    # The top package has no code of its own, so that every package below it says that it is typed (PEP 561).
    assert typed == packages
    assert len(typed) == sum(one.count(".") == 1 for one in PYPROJECT["tool"]["setuptools"]["packages"])
