"""`kernelcast walltime`: its formats, where it finds jobs, how it fails, and that its page tells the truth."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.walltime import walltime
from kernelcast.runtime import DataError, UsageError
from kernelcast.walltime import FIELDS
from kernelcast.walltime.fields import SITE_ONLY
from tests.cli.printed import ended

Make = Callable[..., Path]
ROOT = Path(__file__).parent.parent.parent
SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\nvocabulary_size = 100\n"
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=2
#KERNELCAST model=tiny.toml pp=2 dp=2 timeline=closed-form
#KERNELCAST micro_batch=1 micro_batches=3 steps=1e6
srun true
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, make_bundle: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a batch script and what it needs, as the current one; no site file."""
    make_bundle()
    (tmp_path / "tiny.toml").write_text(SIZES)
    (tmp_path / "train.sbatch").write_text(SCRIPT)
    (tmp_path / "kernelcast.toml").write_text('bundle = "test.kcast"\nprice = 2\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELCAST_SITE", "")
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(walltime, arguments, input=stdin)


def test_readable() -> None:
    lines = run("train.sbatch").stdout.splitlines()
    limit = re.fullmatch(r"time limit (\d\d:\d\d:00)", lines[0])
    assert limit
    times = next(line.split() for line in lines if line.startswith("  time"))
    hours = next(line.split() for line in lines if line.startswith("  GPU-hours"))
    cost = next(line.split() for line in lines if line.startswith("  cost"))
    # 1e6 steps of (3 − 1 + 2) · (250 + 505) + 5 µs; all-reduce and all-gather of dp are 5 µs each.
    assert times[1] == "00:50:35"
    assert float(cost[1]) == pytest.approx(2 * float(hours[1]), abs=0.02)
    assert any(
        line.startswith("layout    pp 2 × tp 1 × dp 2 = 4 GPU(s) on 2 node(s), 2 per node") for line in lines
    )
    assert any(re.fullmatch(r"  steps +1000000 +train.sbatch line 4", line) for line in lines)
    assert not [line for line in lines if line != line.rstrip()]


def test_formats_agree() -> None:
    values = json.loads(run("train.sbatch", "--format", "json").stdout)
    assert values["format"] == "kernelcast.walltime/2"
    limit = run("train.sbatch", "--format", "slurm").stdout
    assert limit == values["slurm"] + "\n"
    assert re.fullmatch(r"\d\d:\d\d:00\n", limit)
    seconds = int(run("train.sbatch", "--format", "seconds").stdout)
    assert seconds - 1 < values["walltime_s"] <= seconds
    assert run("train.sbatch").stdout.startswith(f"time limit {limit}")


def test_names_of_files_cannot_break_lines_or_colour_a_terminal(folder: Path) -> None:
    name = "train\x1b[31m\n.sbatch"
    (folder / name).write_text(SCRIPT + "#KERNELCAST pp=1\n")
    found = run(name)
    assert found.exit_code == 0
    assert "\x1b" not in found.output
    assert "train\\x1b[31m\\n.sbatch line 4" in found.stdout
    assert found.stderr.count("kernelcast: warning:") == 1


def test_a_job_file_that_is_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "kernelcast.toml").unlink()
    os.mkfifo(folder / "kernelcast.toml")
    for job in ("train.sbatch", "."):
        error = run(job, "--bundle", "test.kcast").exception
        assert isinstance(error, DataError)
        assert str(error).startswith("job file kernelcast.toml: cannot be read (is a pipe, expected")


def test_options_go_before_the_script() -> None:
    values = json.loads(run("train.sbatch", "--steps", "2e6", "--margin", "0%", "--format", "json").stdout)
    assert values["steps"] == 2_000_000
    assert values["settings"]["steps"] == {"value": 2_000_000, "origin": "--steps"}
    assert values["walltime_s"] == values["interval_s"][1]


def test_all_by_options(folder: Path) -> None:
    (folder / "kernelcast.toml").unlink()
    arguments = (
        "--bundle test.kcast --model tiny.toml --micro-batch 1 --global-batch 3 --tokens 1e6 --format seconds"
    )
    assert int(run(*arguments.split()).stdout) > 0


def test_every_field_has_an_option_with_a_help() -> None:
    text = run("--help").stdout
    for field in FIELDS.values():
        assert (f" {field.option} " in text) is (field.name not in SITE_ONLY)


def test_a_script_on_standard_input(folder: Path) -> None:
    piped = run("-", "--format", "slurm", stdin=SCRIPT)
    assert piped.stdout == run("train.sbatch", "--format", "slurm").stdout
    # A stranger's: no job file counts, so the site must have the bundle, and the script names no file.
    strange = run("-", "--untrusted", stdin=SCRIPT)
    assert isinstance(strange.exception, UsageError)
    assert str(strange.exception).startswith("batch script line 3: model is ")
    wrong = run("train.sbatch", "--untrusted")
    assert str(wrong.exception).startswith("--untrusted is given with train.sbatch, expected -")


def test_a_strangers_script_with_a_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "site.toml").write_text('bundle = "test.kcast"\nmodels = "."\n')
    monkeypatch.setenv("KERNELCAST_SITE", "site.toml")
    strange = run("-", "--untrusted", "--format", "slurm", stdin=SCRIPT.replace("tiny.toml", "tiny"))
    assert strange.stdout == run("train.sbatch", "--format", "slurm").stdout


def test_gpus_must_fit_the_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "layout pp 2 × tp 1 × dp 2 has 4 GPU(s), expected {}, as the job asks for ({})"
    wrong = run("train.sbatch", "--slurm", "nodes=1")
    assert str(wrong.exception) == expected.format(2, "nodes 1, gpus-per-node 2")
    (folder / "kernelcast.toml").write_text(
        'bundle="test.kcast"\nmodel="tiny.toml"\npp=2\ndp=2\nmicro_batch=1\nmicro_batches=3\nsteps=1'
    )
    assert run().exit_code == 0
    for name, value in (("SLURM_JOB_ID", "1"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_GPUS_ON_NODE", "8")):
        monkeypatch.setenv(name, value)
    assert str(run().exception) == expected.format(16, "nodes 2, gpus-per-node 8")
    # Questions about a script are about its job, not about the process that runs kernelcast.
    assert run("train.sbatch").exit_code == 0


def test_a_limit_that_is_too_short_is_told() -> None:
    found = run("train.sbatch", "--asked", "0-00:10:00", "--format", "slurm")
    assert found.stderr.startswith("kernelcast: warning: time limit 00:10:00 is shorter than the ")
    assert found.stderr.count("\n") == 1
    assert run("train.sbatch", "--asked", "5-00:00:00").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["none.sbatch"], DataError, "batch script none.sbatch: no such file"),
        (
            ["train.sbatch", "--tokens", "many"],
            UsageError,
            "--tokens: tokens is 'many', expected a whole number",
        ),
        (
            ["train.sbatch", "--slurm", "nodes"],
            UsageError,
            "--slurm is 'nodes', expected NAME=VALUE with a name among",
        ),
        (["train.sbatch", "--slurm", "time=3"], UsageError, "--slurm is 'time=3', expected NAME=VALUE"),
        (
            ["train.sbatch", "--asked", "soon"],
            UsageError,
            "--asked is 'soon', expected a time limit such as 00:30:00",
        ),
        (
            ["train.sbatch", "--steps", "1e11", "--margin", "10", "--format", "slurm"],
            DataError,
            "walltime is ",
        ),
        (
            ["train.sbatch", "--steps", "1e12"],
            UsageError,
            "the job would take 35,127 days (1,000,000,000,000 steps of 3.035 ms on 4 GPUs), expected at most 3,653 d",
        ),
        (["train.sbatch", "--bundle", "none.kcast"], DataError, "bundle "),
        (["off.sbatch"], UsageError, "off.sbatch: contains #KERNELCAST off"),
    ],
)
def test_errors_name_the_thing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: type[Exception],
    message: str,
) -> None:
    (folder / "off.sbatch").write_text("#KERNELCAST off\n" + SCRIPT)
    result = run(*arguments)
    assert isinstance(result.exception, error)
    assert str(result.exception).startswith(message)
    assert result.stdout == ""
    assert ended("walltime", *arguments) in (1, 2)
    printed = capsys.readouterr()
    assert printed.err.startswith(f"kernelcast: error: {message}")
    assert printed.err.count("\n") == 1


def test_what_slurm_cannot_be_told_is_still_a_time() -> None:
    long = ("train.sbatch", "--steps", "1e11", "--margin", "10")
    values = json.loads(run(*long, "--json").stdout)
    assert values["slurm"] is None
    assert int(run(*long, "--format", "seconds").stdout) >= values["walltime_s"]
    days = int(values["walltime_s"]) // 86_400
    assert run(*long, "--asked", "1").stdout.startswith(f"time limit {days}-")


def test_the_base_install_is_enough() -> None:
    program = (
        "import sys\n"
        "from kernelcast.cli.main import main\n"
        "try:\n"
        "    main(['walltime', 'train.sbatch', '--format', 'slurm'])\n"
        "finally:\n"
        "    heavy = {'torch', 'sklearn', 'xgboost', 'rich', 'sqlite_utils', 'sqlite3', 'msgspec', 'pandas'}\n"
        "    print('loaded:', *sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "loaded:"


def page() -> str:
    return (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_the_page_says_every_field_and_no_other() -> None:
    table = re.search(r"^\| field \| what \|\n\|---\|---\|\n((?:\|.*\n)+)", page(), re.MULTILINE)
    assert table is not None
    named = [name for row in table[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(FIELDS)


def test_the_pages_script_is_answered(folder: Path) -> None:
    script = re.search(r"^```bash\n(#!/bin/bash\n.*?)^```", page(), re.DOTALL | re.MULTILINE)
    assert script is not None
    (folder / "train.sbatch").write_text(script[1])
    found = run("train.sbatch")
    assert found.exit_code == 0
    assert "on 2 node(s), 4 per node" in found.stdout
