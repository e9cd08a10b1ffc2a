"""A release: two builds are equal byte for byte, and what describes it agrees."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from hashlib import sha256
from importlib.metadata import requires
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


def test_the_runtime_has_hashes() -> None:
    text = (ROOT / "constraints-runtime.txt").read_text()
    pinned = dict(re.findall(r"^(\S+)==(\S+) \\$", text, re.MULTILINE))
    tested = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"numpy", "onnxruntime", "click"} <= set(pinned)
    assert pinned == {name: tested[name] for name in pinned}
    needed = {"kernelcast": PROJECT["dependencies"]} | {name: requires(name) or [] for name in pinned}
    for lines in needed.values():  # whole: pip refuses what has no hash
        names = {re.split(r"[^\w.-]", one)[0].lower() for one in lines if "extra" not in one}
        assert {name for name in names if name in tested and name != "colorama"} <= set(pinned)
    assert all(
        re.search(rf"^{name}==.*\n    --hash=sha256:[0-9a-f]{{64}}", text, re.MULTILINE) for name in pinned
    )


@pytest.mark.slow
def test_what_stands_beside_a_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(built[1].parent, tmp_path / "dist")
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in built}
    bill = json.loads((folder / f"kernelcast-{PROJECT['version']}.cdx.json").read_text())
    own = bill["metadata"]["component"]
    assert (bill["bomFormat"], own["hashes"]) == (
        "CycloneDX",
        [{"alg": "SHA-256", "content": digests[built[1].name]}],
    )
    graph = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(graph) == {own["bom-ref"], *(one["bom-ref"] for one in bill["components"])}
    assert [one.partition("@")[0] for one in graph[own["bom-ref"]]] == [
        f"pkg:pypi/{name}" for name in ("click", "numpy", "onnxruntime")
    ]
    stated = json.loads((folder / f"kernelcast-{PROJECT['version']}.provenance.json").read_text())
    assert {one["name"]: one["digest"]["sha256"] for one in stated["subject"]} == digests
    # Both are refused once a byte of the wheel has changed.
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [python, "-m", "pip", "install", "-q", "--require-hashes", "--find-links", folder, "-r"]
    subprocess.run([*pip, folder / "requirements.txt"], check=True, capture_output=True)
    shown = subprocess.run(
        [python.with_name("kernelcast"), "--version"], check=True, capture_output=True, text=True
    )
    assert shown.stdout == f"kernelcast {PROJECT['version']}\n"
    with (folder / built[1].name).open("ab") as wheel:
        wheel.write(b"x")
    refused = subprocess.run(
        [*pip, folder / "requirements.txt", "--force-reinstall", "--no-deps"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr


@pytest.mark.slow
def test_two_builds_are_equal(built: tuple[Path, Path], tmp_path: Path) -> None:
    # What differs between machines: time zone, mask of modes, order of hashes, and when the files were written.
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path / "other", filter="data")
        epoch_s = archive.getmembers()[0].mtime
    (source,) = (tmp_path / "other").iterdir()
    program = f"import os, runpy, sys; os.umask(0o077); sys.argv[1:] = [{str(tmp_path / 'out')!r}]; "
    program += f"sys.path.insert(0, {str(ROOT / 'release')!r}); "
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
