"""job_submit.lua in a real slurmctld, submitted to by clients without a filter of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.walltime import walltime

pytestmark = pytest.mark.slurm

Slurm = Any  # of conftest.py, which cannot be imported

DEFAULT_LIMIT = "01:00:00"  # the partition's
SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\nvocabulary_size = 100\n"
LINES = "#KERNELCAST model=tiny micro_batch=1\n#KERNELCAST micro_batches=3 steps=1e6\n"


@pytest.fixture
def site(slurm: Slurm, tmp_path: Path, real: Callable[[Path], str]) -> Path:
    """A site with a model; slurmctld asks the real kernelcast for it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.toml").write_text(SIZES)
    path = tmp_path / "site.toml"
    path.write_text(path.read_text() + 'models = "models"\n')
    slurm.predictor("server", real(path))
    return path


def submit(slurm: Slurm, folder: Path, head: str, *options: str, **variables: str) -> Any:
    script = folder / "train.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --output=job.out\n{head}squeue -h -j $SLURM_JOB_ID -o %l\n")
    return slurm.run("sbatch", *options, script.name, cwd=folder, conf=slurm.server_etc, **variables)


def predicted(site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    monkeypatch.setenv("KERNELCAST_SITE", str(site))
    arguments = [str(folder / "train.sbatch"), "--format", "json", *options]
    result = CliRunner().invoke(walltime, arguments, catch_exceptions=False)
    limit: str = json.loads(result.stdout)["slurm"]
    assert limit not in (DEFAULT_LIMIT, "00:01:00")
    return limit


def test_lines_in_the_script(slurm: Slurm, site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = submit(slurm, folder, LINES)
    limit = predicted(site, folder, monkeypatch)
    assert slurm.limit(submitted.job) == limit
    assert submitted.server == [f"time limit {limit}, as predicted"]
    assert slurm.ended(submitted.job)["JobState"] == "COMPLETED"
    assert (folder / "job.out").read_text().strip().endswith(limit.lstrip("0"))
    assert slurm.calls("client") == []


def test_days(slurm: Slurm, site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = submit(slurm, folder, LINES + "#KERNELCAST startup=2d\n")
    limit = slurm.limit(submitted.job)
    assert limit == predicted(site, folder, monkeypatch)
    assert limit.startswith("2-")


def test_a_script_on_standard_input(
    slurm: Slurm, site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(slurm, folder, LINES)
    piped = slurm.run("sh", "-c", "sbatch < train.sbatch", cwd=folder, conf=slurm.server_etc)
    assert slurm.limit(piped.job) == predicted(site, folder, monkeypatch)


@pytest.mark.parametrize("time", ["5", "2-00:30:00", "UNLIMITED"])
def test_a_given_time_is_kept(slurm: Slurm, site: Path, folder: Path, time: str) -> None:
    submitted = submit(slurm, folder, LINES, f"--time={time}")
    assert slurm.limit(submitted.job) == {"5": "00:05:00"}.get(time, time)
    assert (submitted.server, slurm.calls("server")) == ([], [])


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (["--gpus-per-node=2"], 2),
        (["--gpus=2"], 2),
        (["--gres=gpu:2"], 2),
        (["--ntasks=2", "--gpus-per-task=1"], 2),
        (["--nodes=1", "--gpus-per-node=4"], 4),
        (["--gpus=1"], 1),
    ],
)
def test_the_layout_must_have_the_gpus_of_the_job(
    slurm: Slurm, site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], gpus: int
) -> None:
    submitted = submit(slurm, folder, LINES + "#KERNELCAST dp=2\n", *options)
    if gpus == 2:
        assert slurm.limit(submitted.job) == predicted(site, folder, monkeypatch, "--gpus-per-node", "2")
    else:
        assert slurm.limit(submitted.job) == DEFAULT_LIMIT
        assert f"layout pp 1 × tp 1 × dp 2 has 2 GPU(s), expected {gpus}" in submitted.server[0]


@pytest.mark.parametrize(
    "line", ["bundle=/etc/passwd", "model=/etc/slurm/slurm.conf", "model=../tiny.toml", "model=~/tiny.json"]
)
def test_scripts_name_no_files_to_slurmctld(slurm: Slurm, site: Path, folder: Path, line: str) -> None:
    field = line.partition("=")[0]
    submitted = submit(slurm, folder, LINES.replace(" model=tiny", "") + f"#KERNELCAST {line}\n")
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[0].startswith(f"error: batch script line 5: {field} is ")


def test_no_job_file_is_read(slurm: Slurm, site: Path, folder: Path) -> None:
    (folder / "kernelcast.toml").write_text("steps = 1\n")
    submitted = submit(slurm, folder, LINES.replace(" steps=1e6", ""))
    assert submitted.server[0].startswith("error: neither steps, tokens nor samples is given")


@pytest.mark.parametrize(
    "program",
    ["sleep 1000\n", "trap '' TERM; while :; do sleep 1; done\n", "setsid sleep 20 & exit 0\n"],
    ids=["hangs", "ignores TERM", "leaves a child"],
)
def test_a_command_that_hangs(slurm: Slurm, site: Path, folder: Path, program: str) -> None:
    slurm.predictor("server", program)
    submitted = submit(slurm, folder, LINES)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[1:] == ["submitted without a predicted time limit"]


def test_no_such_command(slurm: Slurm, site: Path, folder: Path) -> None:
    (slurm.folder / "bin" / "server").unlink()
    submitted = submit(slurm, folder, LINES)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert "No such file or directory" in submitted.server[0]


def test_a_damaged_bundle(slurm: Slurm, site: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test.kcast").write_bytes(b"PK\x03\x04 not a bundle")
    submitted = submit(slurm, folder, LINES)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[0].startswith(f"error: bundle {tmp_path}/test.kcast: ")


@pytest.mark.parametrize(
    "text", ["$(touch x)", "`touch x`", "'; touch x; '", '"; touch x; "', "ü µ 日本", "%s%n", "\033[31m"]
)
def test_hostile_texts_are_only_texts(
    slurm: Slurm, site: Path, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = submit(slurm, folder, LINES, "--job-name", text, "--comment", f"a\n{text}")
    assert slurm.limit(submitted.job) == predicted(site, folder, monkeypatch)
    submitted = submit(slurm, folder, f"{LINES}#KERNELCAST tokens={text}\n")
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.server[0].startswith("error: batch script line 5: ")
    assert "\033" not in submitted.said
    slurm.ended(submitted.job)
    assert not [path for path in (*folder.iterdir(), *slurm.folder.iterdir()) if path.name == "x"]


@pytest.mark.parametrize(
    ("head", "variables"),
    [
        ("", {}),
        ("# KERNELCAST steps=1\n", {}),
        (LINES + "#KERNELCAST off\n", {}),
        (LINES, {"KERNELCAST": "off"}),
    ],
)
def test_who_does_not_ask_is_left_alone(
    slurm: Slurm, site: Path, folder: Path, head: str, variables: dict[str, str]
) -> None:
    submitted = submit(slurm, folder, head, **variables)
    assert (slurm.limit(submitted.job), submitted.server, slurm.calls("server")) == (DEFAULT_LIMIT, [], [])


def test_changing_a_job_asks_nobody(slurm: Slurm, site: Path, folder: Path) -> None:
    submitted = submit(slurm, folder, LINES, "--hold")
    slurm.forget_calls()
    changed = slurm.run("scontrol", "update", f"JobId={submitted.job}", "TimeLimit=00:33:00")
    assert changed.status == 0
    assert (slurm.limit(submitted.job), slurm.calls("server")) == ("00:33:00", [])
