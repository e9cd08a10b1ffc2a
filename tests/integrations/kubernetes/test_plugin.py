"""`kubectl kernelcast`: what kubectl runs as kubectl-kernelcast passes a manifest on whatever happens."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Ask = Callable[[str], int]
Program = Callable[[str], Path]

KUBERNETES = Path(__file__).parents[3] / "integrations" / "kubernetes"
OPTIONS = ["--model", "tiny", "--micro-batch", "1", "--micro-batches", "3", "--steps", "1e6"]
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: a\nspec:\n  template: {}\n"


def run(
    command: Path | str, folder: Path, *arguments: str, stdin: str = "", timeout_s: float = 300
) -> "subprocess.CompletedProcess[str]":
    variables = {"KERNELCAST_COMMAND": str(command), "KERNELCAST_TIMEOUT_S": str(timeout_s)}
    return subprocess.run(
        [KUBERNETES / "kubectl-kernelcast", *arguments],
        cwd=folder,
        env=os.environ | variables | {"TMPDIR": str(folder)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "it's a folder"
    path.mkdir()
    (path / "-job.yaml").write_text(JOB)
    return path


def test_with_limits(real: Path, folder: Path, predicted_s: Ask) -> None:
    for arguments, stdin in ((["-", *OPTIONS], JOB), (["-job.yaml", *OPTIONS], "")):
        done = run(real, folder, *arguments, stdin=stdin)
        assert done.returncode == 0
        job = yaml.safe_load(done.stdout)
        asked_s = predicted_s("model=tiny micro_batch=1 micro_batches=3 steps=1e6")
        assert job["spec"]["activeDeadlineSeconds"] == asked_s
    assert [path.name for path in folder.iterdir()] == ["-job.yaml"]


@pytest.mark.parametrize("source", ["-", "-job.yaml"])
def test_what_fails_passes_the_manifest_on(real: Path, folder: Path, tmp_path: Path, source: str) -> None:
    (tmp_path / "test.kcast").write_bytes(b"PK\x03\x04 not a bundle")
    for command, said in ((real, "error: bundle "), (tmp_path / "none", "No such file or directory")):
        done = run(command, folder, source, *OPTIONS, stdin=JOB)
        assert (done.returncode, done.stdout) == (0, JOB)
        assert said in done.stderr
        assert done.stderr.endswith("kubectl kernelcast: without predicted time limits\n")


@pytest.mark.slow(minutes=1)
def test_hanging_commands(hanging: Path, folder: Path) -> None:
    done = run(hanging, folder, "-", *OPTIONS, stdin=JOB, timeout_s=0.5)
    assert (done.returncode, done.stdout) == (0, JOB)


@pytest.mark.parametrize("text", ["exit 0\n", "echo 'kind: Job'; exit 1\n"])
def test_half_an_answer_is_none(program: Program, folder: Path, text: str) -> None:
    assert run(program(text), folder, "-job.yaml").stdout == JOB


def test_no_file(real: Path, folder: Path) -> None:
    done = run(real, folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert run(real, folder, "none.yaml").returncode == 1


def test_the_example_describes_itself(real: Path, folder: Path) -> None:
    # It names a built-in model, for which the site's bundle has regressors.
    example = KUBERNETES / "train-job.yaml"
    done = run(real, folder, str(example))
    job = yaml.safe_load(done.stdout)
    assert job["spec"]["activeDeadlineSeconds"] > 0
    assert "without" not in done.stderr
