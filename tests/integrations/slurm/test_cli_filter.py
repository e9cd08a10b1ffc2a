"""cli_filter.lua in a real Slurm: the time limit that `scontrol show job` reports, whatever happens on the way."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.walltime import walltime
from kernelcast.walltime import BatchScript, format_time
from kernelcast.walltime.durations import MAX_SLURM_S

pytestmark = pytest.mark.slurm

Slurm = Any  # of conftest.py, which cannot be imported

DEFAULT_LIMIT = "01:00:00"  # the partition's
SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\nvocabulary_size = 100\n"
TOML = 'model = "tiny.toml"\nmicro_batch = 1\nmicro_batches = 3\nsteps = 1_000_000\n'
LINES = "#KERNELCAST model=tiny.toml micro_batch=1\n#KERNELCAST micro_batches=3 steps=1e6\n"


@pytest.fixture
def script(folder: Path) -> Path:
    """A batch script that describes itself."""
    return write_script(folder, LINES)


def write_script(folder: Path, head: str, name: str = "train.sbatch") -> Path:
    (folder / "tiny.toml").write_text(SIZES)
    path = folder / name
    path.write_text(f"#!/bin/bash\n#SBATCH --output=job.out\n{head}squeue -h -j $SLURM_JOB_ID -o %l\n")
    path.chmod(0o755)
    return path


def predicted(folder: Path, job: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """The time limit that the command, called here, predicts with the site file of the fixture."""
    site = next(above / "site.toml" for above in folder.parents if (above / "site.toml").exists())
    monkeypatch.setenv("KERNELCAST_SITE", str(site))
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(walltime, [job, "--format", "json", *options], catch_exceptions=False)
    limit: str = json.loads(result.stdout)["slurm"]
    assert limit not in (DEFAULT_LIMIT, "00:01:00")
    return limit


def test_lines_in_the_script(
    slurm: Slurm, folder: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = slurm.run("sbatch", script.name, cwd=folder)
    limit = predicted(folder, script.name, monkeypatch)
    assert slurm.limit(submitted.job) == limit
    assert submitted.client == [f"time limit {limit}, as predicted for {script}"]
    # The job itself sees it.
    assert slurm.ended(submitted.job)["JobState"] == "COMPLETED"
    assert (folder / "job.out").read_text().strip().endswith(limit.lstrip("0"))


def test_a_job_file_beside_the_script(
    slurm: Slurm, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(folder, "")
    (folder / "kernelcast.toml").write_text(TOML)
    submitted = slurm.run("sbatch", "../submit/train.sbatch", cwd=folder)
    limit = predicted(folder, "train.sbatch", monkeypatch)
    assert slurm.limit(submitted.job) == limit
    # A line in the script goes before.
    write_script(folder, "#KERNELCAST steps=3e6\n")
    longer = slurm.limit(slurm.run("sbatch", str(folder / "train.sbatch")).job)
    assert longer == predicted(folder, "train.sbatch", monkeypatch) > limit


def test_a_wrapped_command_is_described_by_its_folder(
    slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(folder, "")
    (folder / "kernelcast.toml").write_text(TOML)
    submitted = slurm.run("sbatch", "--chdir", str(folder), "--wrap", "true")
    assert slurm.limit(submitted.job) == predicted(folder, ".", monkeypatch)


@pytest.mark.parametrize("how", ["option", "line", "environment"])
def test_a_given_time_is_kept(slurm: Slurm, folder: Path, script: Path, how: str) -> None:
    if how == "line":
        write_script(folder, "#SBATCH --time=2-00:30\n" + LINES)
    option = ["--time=2-00:30:00"] if how == "option" else []
    variables = {"SBATCH_TIMELIMIT": "2-00:30:00"} if how == "environment" else {}
    submitted = slurm.run("sbatch", *option, script.name, cwd=folder, **variables)
    assert slurm.limit(submitted.job) == "2-00:30:00"
    assert submitted.client == []


def test_a_given_time_that_is_too_short_is_kept_with_a_warning(
    slurm: Slurm, folder: Path, script: Path
) -> None:
    submitted = slurm.run("sbatch", "--time=5", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == "00:05:00"
    assert len(submitted.client) == 1
    assert submitted.client[0].startswith("warning: time limit 00:05:00 is shorter than the ")


@pytest.mark.parametrize("time", ["UNLIMITED", "0"])
def test_a_given_unlimited_time_is_kept(slurm: Slurm, folder: Path, script: Path, time: str) -> None:
    submitted = slurm.run("sbatch", f"--time={time}", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == "UNLIMITED"
    assert slurm.calls("client") == []


def test_a_damaged_bundle(slurm: Slurm, folder: Path, script: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "test.kcast"
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.write_bytes(content)
    submitted = slurm.run("sbatch", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.client[0].startswith(f"error: bundle {bundle}: ")
    assert submitted.client[1:] == ["submitted without a predicted time limit"]


def test_no_such_command(slurm: Slurm, folder: Path, script: Path) -> None:
    (slurm.folder / "bin" / "client").unlink()
    submitted = slurm.run("sbatch", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert "No such file or directory" in submitted.client[0]


@pytest.mark.parametrize(
    "program",
    [
        "sleep 1000\n",
        "trap '' TERM; while :; do sleep 1; done\n",
        "setsid sleep 20 & exit 0\n",  # keeps the output open after its parent has gone
    ],
    ids=["hangs", "ignores TERM", "leaves a child"],
)
def test_a_command_that_hangs(slurm: Slurm, folder: Path, script: Path, program: str) -> None:
    slurm.predictor("client", program)
    submitted = slurm.run("sbatch", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert submitted.client[-1] == "submitted without a predicted time limit"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "soon",
        "00:10",
        "00:10:00; reboot",
        "99999999-00:00:00",
        "00:10:00\n00:20:00",
        "-00:10:00",
        "\\033[2J",
    ],
)
def test_an_answer_that_is_no_time(slurm: Slurm, folder: Path, script: Path, answer: str) -> None:
    slurm.predictor("client", f"printf '{answer}\\n'\n")
    submitted = slurm.run("sbatch", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert "\033" not in submitted.said


def test_whatever_is_said_is_shown_without_control_characters(
    slurm: Slurm, folder: Path, script: Path
) -> None:
    slurm.predictor("client", "printf '00:10:00\\n'; printf 'a \\033[31mred\\007 µ %%s %%n\\n' >&2\n")
    submitted = slurm.run("sbatch", script.name, cwd=folder)
    assert slurm.limit(submitted.job) == "00:10:00"
    assert submitted.client[0] == "a ?[31mred? µ %s %n"


HOSTILE = [
    "$(touch x)",
    "`touch x`",
    "'; touch x; '",
    '"; touch x; "',
    "a\ntouch x\n",
    "$IFS&touch${IFS}x|ü µ 日本",
    "-rf",
    "%s%n",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_only_texts(
    slurm: Slurm, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the script's name and folder, the job's name and comment; all reach the filter, two reach the shell.
    inside = folder / f"d{text}".replace("/", "_")
    inside.mkdir()
    script = write_script(inside, LINES, name=text.replace("/", "_"))
    submitted = slurm.run("sbatch", "--job-name", text, "--comment", text, f"./{script.name}", cwd=inside)
    assert slurm.limit(submitted.job) == predicted(folder, f"./{inside.name}/{script.name}", monkeypatch)
    by_path = slurm.run("sbatch", "--chdir=/", str(script))
    assert slurm.limit(by_path.job) == slurm.limit(submitted.job)
    slurm.ended(submitted.job)
    assert not [
        path for path in (*inside.iterdir(), *folder.iterdir(), *slurm.folder.iterdir()) if path.name == "x"
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_fields_are_only_texts(slurm: Slurm, folder: Path, text: str) -> None:
    quoted = shlex.quote(text.replace("\n", " "))
    write_script(folder, f"{LINES}#KERNELCAST tokens={quoted}\n")
    submitted = slurm.run("sbatch", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert "train.sbatch line 5: tokens is " in submitted.said
    (folder / "kernelcast.toml").write_text(f"model = {json.dumps(text)}\n")
    write_script(folder, "")
    submitted = slurm.run("sbatch", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    slurm.ended(submitted.job)
    assert not (folder / "x").exists()


def test_the_layout_must_have_the_gpus_of_the_job(
    slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(folder, "#SBATCH --gpus-per-node=2\n#KERNELCAST dp=2\n" + LINES)
    submitted = slurm.run("sbatch", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == predicted(folder, "train.sbatch", monkeypatch)
    # An option on the command line is what the job gets.
    submitted = slurm.run("sbatch", "--gpus-per-node=4", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert "layout pp 1 × tp 1 × dp 2 has 2 GPU(s), expected 4" in submitted.said
    write_script(folder, "#KERNELCAST dp=2\n" + LINES)
    submitted = slurm.run("sbatch", "--gres=gpu:2", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == predicted(folder, "train.sbatch", monkeypatch)


@pytest.mark.parametrize("how", ["line", "environment", "nothing said"])
def test_who_does_not_ask_is_left_alone(slurm: Slurm, folder: Path, how: str) -> None:
    lines = {
        "line": LINES + "#KERNELCAST off\n",
        "environment": LINES,
        "nothing said": "# KERNELCAST\n#KERNELCASTS\n",
    }
    write_script(folder, lines[how])
    submitted = slurm.run(
        "sbatch", "train.sbatch", cwd=folder, **({"KERNELCAST": "off"} if how == "environment" else {})
    )
    assert (slurm.limit(submitted.job), submitted.client, slurm.calls("client")) == (DEFAULT_LIMIT, [], [])


def test_srun_of_a_script_that_asks(slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write_script(folder, LINES)
    ran = slurm.run("srun", "--job-name=one", f"./{script.name}", cwd=folder)
    limit = predicted(folder, script.name, monkeypatch)
    assert ran.status == 0
    assert ran.out.strip().endswith(limit.lstrip("0"))


def test_srun_of_a_program_and_salloc_are_left_alone(slurm: Slurm, folder: Path) -> None:
    write_script(folder, "")
    (folder / "kernelcast.toml").write_text(TOML)
    squeue = ("sh", "-c", "squeue -h -j $SLURM_JOB_ID -o %l")
    for command in (("srun", *squeue), ("salloc", *squeue), ("salloc", "srun", *squeue)):
        ran = slurm.run(*command, cwd=folder)
        assert ran.status == 0
        assert ran.out.strip() == DEFAULT_LIMIT.lstrip("0")
    assert slurm.calls("client") == []


def test_steps_inside_a_job_keep_its_time(slurm: Slurm, folder: Path) -> None:
    script = write_script(folder, LINES)
    submitted = slurm.run("sbatch", "--time=9", "--wrap", f"srun {script}; true", cwd=folder)
    assert slurm.ended(submitted.job)["TimeLimit"] == "00:09:00"
    assert slurm.calls("client") == []


def test_a_named_pipe_is_not_waited_for(slurm: Slurm, folder: Path) -> None:
    # sbatch has read its script by then; whoever opened the pipe again would wait for another writer.
    ran = slurm.run(
        "bash",
        "-c",
        "mkfifo pipe; (printf '#!/bin/sh\\n#KERNELCAST steps=1\\n' > pipe &); sbatch pipe",
        cwd=folder,
    )
    assert slurm.limit(ran.job) == DEFAULT_LIMIT


def test_without_its_library_the_filter_lets_jobs_go(
    slurm: Slurm, folder: Path, script: Path, tmp_path: Path
) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("slurm.conf", "gres.conf"):
        (etc / name).write_text((slurm.etc / name).read_text())
    lua = (slurm.etc / "cli_filter.lua").read_text()
    (etc / "cli_filter.lua").write_text(lua.replace("kernelcast.lua", "gone.lua"))
    assert slurm.limit(slurm.run("sbatch", script.name, cwd=folder, conf=etc).job) == DEFAULT_LIMIT


def test_nothing_is_left_behind(slurm: Slurm, folder: Path, script: Path, tmp_path: Path) -> None:
    # The answers go through files; they are in /tmp, whatever TMPDIR is.
    before = {path for path in Path("/tmp").iterdir() if path.name.startswith("lua_")}
    slurm.run("sbatch", script.name, cwd=folder)
    slurm.predictor("client", "exit 1\n")
    slurm.run("sbatch", script.name, cwd=folder)
    assert {path for path in Path("/tmp").iterdir() if path.name.startswith("lua_")} <= before


def test_the_longest_time_limit_is_one_that_slurm_keeps(slurm: Slurm, folder: Path) -> None:
    for time_s, kept in ((MAX_SLURM_S, True), (MAX_SLURM_S + 86_400, False)):
        time = format_time(time_s)
        assert (slurm.limit(slurm.run("sbatch", f"--time={time}", "--wrap", "true").job) == time) is kept


@pytest.mark.parametrize("before", ["  # a comment\n", "\n \t\n", "\f\n", "true\n", "  true\n", ": # a\n"])
def test_comments_count_where_slurms_do(slurm: Slurm, folder: Path, before: str) -> None:
    script = write_script(folder, f"{before}#SBATCH --time=9\n{LINES}")
    read_by_slurm = (
        slurm.limit(slurm.run("sbatch", script.name, cwd=folder, KERNELCAST="off").job) == "00:09:00"
    )
    assert bool(BatchScript.read(script).given) is read_by_slurm


def test_both_parts_of_a_heterogeneous_job(
    slurm: Slurm, folder: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = slurm.run("sbatch", "--hold", "-n1", ":", "-n1", script.name, cwd=folder)
    shown = slurm.run("scontrol", "show", "job", submitted.job).out
    limit = predicted(folder, script.name, monkeypatch)
    assert re.findall(r"TimeLimit=(\S+)", shown) == [limit, limit]


def test_the_daemons_of_the_pages_configuration_listen_on_this_machine_only(slurm: Slurm) -> None:
    assert slurm.listening() == {"0100007F"}  # 127.0.0.1


@pytest.mark.parametrize("name", ["train.sbatch", "./train.sbatch", "../submit/train.sbatch"])
def test_the_script_that_is_read_is_the_one_that_is_submitted(
    slurm: Slurm, folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A script of the same name lies where the job is to run.
    other = tmp_path / "other" / "submit"
    other.mkdir(parents=True)
    write_script(folder, LINES + "# here\n")
    write_script(other, LINES + "#KERNELCAST startup=1d\n# there\n")
    submitted = slurm.run("sbatch", f"--chdir={other}", name, cwd=folder)
    slurm.run("scontrol", "write", "batch_script", submitted.job, str(tmp_path / "written"))
    read = folder if "# here" in (tmp_path / "written").read_text() else other
    assert slurm.limit(submitted.job) == predicted(read, "train.sbatch", monkeypatch)


def test_a_job_gets_no_more_than_the_sites_longest_time(slurm: Slurm, folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(site.read_text() + 'max_time = "30m"\n')
    write_script(folder, LINES + "#KERNELCAST checkpoint_every=1000\n")
    submitted = slurm.run("sbatch", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == "00:30:00"
    assert "jobs of 00:30:00 that continue from checkpoints" in submitted.client[0]
    write_script(folder, LINES)
    submitted = slurm.run("sbatch", "train.sbatch", cwd=folder)
    assert slurm.limit(submitted.job) == DEFAULT_LIMIT
    assert f"site file {site}: max_time is 00:30:00, expected at least the " in submitted.client[0]
