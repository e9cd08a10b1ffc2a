"""job_submit.lua in a real slurmctld that asks a running `kernelcast serve` through kernelcast-ask."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

Slurm = Any  # of conftest.py, which cannot be imported

ASK = Path(__file__).parent.parent.parent.parent / "integrations" / "slurm" / "kernelcast-ask"
DEFAULT_LIMIT = "01:00:00"  # the partition's
LINES = "#KERNELCAST model=llama-2-7b micro_batch=1\n#KERNELCAST micro_batches=3 steps=1e7 startup=90m\n"


@pytest.fixture
def server(slurm: Slurm, make_bundle: Callable[..., Path]) -> Iterator["subprocess.Popen[str]"]:
    """A warm predictor; slurmctld asks it."""
    bundle, socket = make_bundle(), slurm.folder / "warm"
    words = ["serve", "--bundle", str(bundle), "--socket", str(socket), "--socket-mode", "0666"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelcast.cli.main", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KERNELCAST_SITE": ""},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"unix:{socket}: ")
    slurm.predictor("server", f'shift\nKERNELCAST_SOCKET={socket} KERNELCAST_TIMEOUT_S=25 exec {ASK} "$@"\n')
    yield process
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.wait(timeout=600)
    process.stdout.close()


def submit(slurm: Slurm, folder: Path, head: str, *options: str) -> Any:
    script = folder / "train.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --output=job.out\n{head}true\n")
    return slurm.run("sbatch", *options, script.name, cwd=folder, conf=slurm.server_etc)


def test_a_limit_from_the_warm_process(slurm: Slurm, server: object, folder: Path) -> None:
    submitted = submit(slurm, folder, LINES)
    limit = slurm.limit(submitted.job)
    assert limit > DEFAULT_LIMIT
    assert submitted.server == [f"time limit {limit}, as predicted"]
    assert "--format slurm" in slurm.calls("server")[0]


def test_what_the_job_asks_of_slurm_counts(slurm: Slurm, server: object, folder: Path) -> None:
    submitted = submit(slurm, folder, LINES, "--gpus-per-node=2")
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[0].startswith("error: layout pp 1 × tp 1 × dp 1 has 1 GPU(s), expected 2")


def test_slips_and_hostile_texts(slurm: Slurm, server: object, folder: Path) -> None:
    for text in ("$(touch x)", "'; touch x; '", "\033[31m", "ü µ 日本"):
        submitted = submit(slurm, folder, f"{LINES}#KERNELCAST tokens={text}\n", "--comment", text)
        assert slurm.limit(submitted.job) == DEFAULT_LIMIT
        assert submitted.server[0].startswith("error: batch script line 5: ")
        assert "\033" not in submitted.said
    assert not [path for path in (*folder.iterdir(), *slurm.folder.iterdir()) if path.name == "x"]


def test_a_server_that_hangs_or_is_gone(slurm: Slurm, server: "subprocess.Popen[str]", folder: Path) -> None:
    server.send_signal(signal.SIGSTOP)
    submitted = submit(slurm, folder, LINES)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[-1] == "submitted without a predicted time limit"
    server.kill()
    server.wait()
    submitted = submit(slurm, folder, LINES)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[0].startswith("error: no answer from ")
