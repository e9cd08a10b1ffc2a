"""The thin client for Slurm's scripts: the same words as `kernelcast walltime`, asked of a running server."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

ASK = Path(__file__).parent.parent.parent / "integrations" / "slurm" / "kernelcast-ask"
LINES = "#!/bin/bash\n#KERNELCAST model=llama-2-7b micro_batch=1\n#KERNELCAST micro_batches=3 steps=1e6\n"


@pytest.fixture
def folder(server: Server) -> Path:
    """Where the server has its socket."""
    return Path(server.where.removeprefix("unix:")).parent


def ask(folder: Path, *words: str, script: str = LINES) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ASK), *words], input=script, capture_output=True, text=True, check=False, timeout=1200,
        env={**os.environ, "KERNELCAST_SOCKET": str(folder / "s"), "KERNELCAST_TIMEOUT_S": "600"},
    )  # fmt: skip


def test_a_time_limit(server: Server, folder: Path) -> None:
    expected = server.script(LINES.encode()).body.decode()
    for words in ("-", "--format slurm --slurm nodes=1 --slurm gres=gpu:1 --untrusted -- -"):
        done = ask(folder, *words.split())
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    (folder / "job one").write_text(LINES)
    assert ask(folder, "--", str(folder / "job one")).stdout == expected


def test_what_the_server_says_goes_to_the_user(server: Server, folder: Path) -> None:
    done = ask(folder, "--asked", "0-00:00:30", "-")
    assert done.returncode == 0
    assert done.stderr.startswith("kernelcast: warning: time limit 00:00:30 is shorter than")
    done = ask(folder, "--slurm", "gpus=8", "-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kernelcast: error: layout pp 1")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--slurm", "gres=gpu:1&asked=1", "-"], "--slurm holds a character"),
        (["--slurm", "nodes=1\n", "-"], "--slurm holds a character"),
        (["--asked", "$(touch x)", "-"], "--asked holds a character"),
        (["--asked"], "--asked has no value"),
        (["--format", "json", "-"], "--format is not slurm"),
        (["--bundle", "-"], "option is unknown"),
        (["--", "a", "b"], "more than one JOB"),
        (["/no/such/file"], "JOB is no file"),
        ([], "no JOB given"),
    ],
)
def test_slips(server: Server, folder: Path, words: list[str], line: str) -> None:
    done = ask(folder, *words)
    assert (done.returncode in (1, 2), done.stdout, done.stderr.count("\n")) == (True, "", 1)
    assert done.stderr.startswith(f"kernelcast: error: {line}")


def test_hostile_scripts_are_only_texts(server: Server, folder: Path) -> None:
    for text in ("$(touch x)", "`touch x`", "'; touch x; '", "%s%n", "\x1b[31m", "@/etc/passwd"):
        done = ask(folder, "-", script=f"{LINES}#KERNELCAST tokens={text}\n")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("kernelcast: error: batch script line 4: ")
        assert "\x1b" not in done.stderr
    assert ask(folder, "-", script="@/etc/passwd").stderr.startswith("kernelcast: error: model is not given")


def test_nobody_answers(tmp_path: Path) -> None:
    done = ask(tmp_path, "-")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"kernelcast: error: no answer from {tmp_path}/s, expected kernelcast serve there\n"
