"""`kernelcast train`, twice: the same bytes from processes of their own, and from what an earlier bundle holds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Run, Sample
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

COMPUTE = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)
SOFTWARE = SoftwareFingerprint(torch="2.13.0")


def store(path: Path, widths: range, *, operator: str = "gelu") -> None:
    """Add one sample per width."""
    run = Run(
        started_at="2026-01-31T08:15:00Z",
        kernelcast_version="0.1.0",
        command="collect compute",
        compute_id=COMPUTE.digest,
        software_id=SOFTWARE.digest,
    )
    samples = [
        Sample(
            run_id=run.id,
            operator=operator,
            direction=Direction.FORWARD,
            dtype="float32",
            vector=(4, 128, 64 * width),
            time_us=10 + width * 16.0 + width % 3,
            quiet_us=10 + width * 16.0 + width % 3,
            measured_at="2026-01-31T08:16:00Z",
        )
        for width in widths
    ]
    with Database.open(path, create=True) as database:
        database.add_run(run, COMPUTE, None, SOFTWARE)
        database.add_samples(samples)


def train(folder: Path, output: str, *arguments: str, hash_seed: str = "0") -> dict[str, Any]:
    """Run the command in a process of its own; answers its JSON."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "kernelcast.cli.main",
            "train",
            "--db",
            "bench.db",
            "-o",
            output,
            "--json",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with bench.db: gelu and swiglu, forward."""
    store(tmp_path / "bench.db", range(1, 9))
    store(tmp_path / "bench.db", range(1, 9), operator="swiglu")
    return tmp_path


@pytest.mark.slow
def test_processes_of_their_own_write_the_same_bytes_and_fit_only_what_changed(folder: Path) -> None:
    assert ended("train", "--db", folder / "bench.db", "-o", folder / "first.kcast", "--jobs", "1") == 0
    store(folder / "bench.db", range(20, 22), operator="swiglu")
    again = train(folder, "again.kcast", "--from", "first.kcast", hash_seed="22")
    assert {row["operator"]: row["fitted"] for row in again["operators"]} == {"gelu": False, "swiglu": True}
    full = train(folder, "full.kcast", "--jobs", "2", hash_seed="4242")
    assert all(row["fitted"] for row in full["operators"])
    assert full["bundle_digest"] == again["bundle_digest"]
    assert (folder / "full.kcast").read_bytes() == (folder / "again.kcast").read_bytes()


def test_an_earlier_bundle_that_cannot_be_read_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "old.kcast").write_bytes(b"junk")
    for old, message in (
        ("old.kcast", "not a bundle (expected a zip file, 4 bytes found)"),
        ("none.kcast", "no such file"),
    ):
        arguments = ("--db", folder / "bench.db", "-o", folder / "x", "--from", folder / old)
        assert ended("train", *arguments) == 1
        assert capsys.readouterr().err == f"kernelcast: error: bundle {folder / old}: {message}\n"
    assert not (folder / "x").exists()
