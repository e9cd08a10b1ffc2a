"""Build the source archive and the wheel, byte for byte the same from the same files (`make dist`).

python release/dist.py FOLDER

The wheel is built from the archive, by the build system that pyproject.toml names, in an environment of its own. Times
in both are SOURCE_DATE_EPOCH, by default that of the last commit. setuptools writes archives with the times, owners and
modes of the files at hand, so the archive is written again without them. In a clone only files that git knows
get in. Next to them are written a bill of materials, where they were built from, and requirements with hashes.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from statements import write_statements  # next to this file

ROOT = Path(__file__).resolve().parent.parent
_FIRST = 315_532_800  # 1980, where the times of ZIP begin
_SDIST = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"
_LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "site", "*.egg-info", "__pycache__", "*.py[cod]")


def build(out: Path, epoch_s: int) -> tuple[Path, Path]:
    """Write both into `out`, and statements next to them, whose names are printed; answers archive and wheel."""
    out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    with TemporaryDirectory() as folder:
        source, made = Path(folder, "source"), Path(folder, "made")
        made.mkdir()
        _copy(source)
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch_s), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        venv.create(Path(folder, "venv"), with_pip=True)
        python = str(Path(folder, "venv", "bin", "python"))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        pip = [python, "-m", "pip", "--quiet"]
        constraint = ["-c", str(ROOT / "constraints.txt")]
        _run([*pip, "install", *constraint, *project["build-system"]["requires"]], Path(folder), environment)
        name = _run([python, "-c", _SDIST, str(made)], source, environment).splitlines()[-1]
        archive = _plain(made / name, out / name, epoch_s)
        command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(made), str(archive)]
        _run(command, Path(folder), environment)
        (wheel,) = made.glob("*.whl")
        wheel = Path(shutil.copyfile(wheel, out / wheel.name))
        for path in write_statements(archive, wheel, project, epoch_s):
            print(path)
        return archive, wheel


def _copy(target: Path) -> None:
    """The files of the tree."""
    if not (ROOT / ".git").exists():
        shutil.copytree(ROOT, target, ignore=_LEFT_OUT)
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def _plain(archive: Path, target: Path, epoch_s: int) -> Path:
    """The same archive without what differs between machines: order, times, owners, modes."""
    plain = io.BytesIO()
    with (
        tarfile.open(archive) as made,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member in sorted(made.getmembers(), key=lambda one: one.name):
            content = made.extractfile(member)
            one = tarfile.TarInfo(member.name)
            one.type, one.size, one.mtime = member.type, member.size, epoch_s
            one.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            tar.addfile(one, content)
    target.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch_s))
    return target


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _epoch_s() -> int:
    stated = os.environ.get("SOURCE_DATE_EPOCH")
    if not stated and (ROOT / ".git").exists():
        command = ["git", "log", "-1", "--format=%ct"]
        stated = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return int(stated) if stated else _FIRST


if __name__ == "__main__":
    for path in build(Path(sys.argv[1]), _epoch_s()):
        print(path)
