"""The head of a batch script: which lines count, and every slip by its line."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import DataError, UsageError
from kernelcast.walltime import BatchScript

HEAD = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node 4   # both
  # KERNELCAST is nothing, #KERNELCAST steps=1 neither

#KERNELCAST model=llama-2-7b tokens=1e9 # all of it
#KERNELCAST
#KERNELCASTX steps=2
#KERNELCAST bundle='b c.kcast' "startup=5m"\r
srun train
"""


def parse(text: str) -> BatchScript:
    return BatchScript.parse(text, name="job.sh", folder=Path("/folder"))


def test_the_head_is_read() -> None:
    script = parse(HEAD)
    assert {name: given.value for name, given in script.given.items()} == {
        "model": "llama-2-7b",
        "tokens": 10**9,
        "bundle": "/folder/b c.kcast",
        "startup": 300.0,
    }
    assert script.given["tokens"].origin == "job.sh line 5"
    assert script.slurm_options == {"nodes": "2", "gpus-per-node": "4"}
    assert (script.off, script.warnings) == (False, ())


def test_lines_after_the_first_command_are_not_read_but_told() -> None:
    script = parse(HEAD + "#KERNELCAST steps=1\n#SBATCH --nodes=9\n#KERNELCAST off\n")
    assert "steps" not in script.given
    assert script.slurm_options["nodes"] == "2"
    assert not script.off
    told = "#KERNELCAST after the first command is not read (as with #SBATCH)"
    assert script.warnings == (f"job.sh line 10: {told}", f"job.sh line 12: {told}")


@pytest.mark.parametrize("line", ["#kernelcast steps=1", "# KERNELCAST off", "#Kernelcast tokens=1e9 tp=2"])
def test_lines_that_only_look_like_ours_are_told(line: str) -> None:
    script = parse(f"{line}\n{HEAD}")
    assert script.warnings == (f"job.sh line 1: '{line}' is not read, expected #KERNELCAST in upper case",)
    assert not parse(f"# kernelcast predicts this job\n{HEAD}").warnings


def test_off() -> None:
    assert parse(HEAD.replace("#KERNELCAST\n", "#KERNELCAST off\n")).off


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("-N2 -n 8 -G a100:8", {"nodes": "2", "ntasks": "8", "gpus": "a100:8"}),
        ("--nodes 2", {"nodes": "2"}),
        ("--nodes=2 --nodes=3", {"nodes": "3"}),
        ("--gres=gpu:2,lustre:1 --exclusive", {"gres": "gpu:2,lustre:1"}),
        ("--ntasks-per-node=4 --gpus-per-task=1", {"ntasks-per-node": "4", "gpus-per-task": "1"}),
        ("--job-name='a # b' --gpus=1", {"gpus": "1"}),
        ("--nodes", {"nodes": ""}),
        ("--comment='open", {}),
        ("--nodelist=n1 --nodes-are-not-an-option=3", {}),
        ("# --nodes=2", {}),
    ],
)
def test_slurms_options(line: str, options: dict[str, str]) -> None:
    assert parse(f"#SBATCH {line}\n").slurm_options == options


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("steps", "job.sh line 2: found 'steps', expected field=value or off"),
        ("steps=1 steps=2", "job.sh line 2: steps is given again, first in job.sh line 2"),
        ("steps=0", "job.sh line 2: steps is '0', expected a whole number from 1 to 1e12"),
        ("step=1", "job.sh line 2: field 'step' is unknown (did you mean steps?)"),
        ("models=m", "job.sh line 2: field models is set here, expected only in the site file"),
        (
            "model='a",
            'job.sh line 2: no closing quotation in "#KERNELCAST model=\'a", expected field=value …',
        ),
        ("=1", "job.sh line 2: field '' is unknown"),
    ],
)
def test_slips_name_the_line(line: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(f"#!/bin/sh\n#KERNELCAST {line}\n")
    assert str(raised.value).startswith(message)


@given(st.text())
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for script in (text, f"#KERNELCAST {text}", f"#SBATCH {text}\n#KERNELCAST steps={text}"):
        message = ""
        try:
            parse(script)
        except UsageError as error:
            message = str(error)
        assert not message or message.isprintable()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(b"#!/bin/sh\n#KERNELCAST bundle=b.kcast # \xff\xfe\n\xff\n")
    script = BatchScript.read(path)
    assert script.given["bundle"].value == str(tmp_path / "b.kcast")
    assert script.given["bundle"].origin == f"{path} line 2"
    for missing, message in ((tmp_path / "none", "no such file"), (tmp_path, "cannot be read (is a folder")):
        with pytest.raises(DataError, match=f"^batch script {missing}: {re.escape(message)}"):
            BatchScript.read(missing)
