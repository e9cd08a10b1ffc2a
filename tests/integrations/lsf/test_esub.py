"""The esub sets the run limit of jobs that describe themselves and have none; bsub always submits."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[[str], int]
Bsub = Callable[..., Any]
Program = Callable[[str], Path]

FIELDS = "model=tiny micro_batch=1 micro_batches=3 steps=1e6"
SCRIPT = f"#!/bin/sh\n#BSUB -n 4\n#KERNELCAST {FIELDS}\nmpirun true\n"
JOB_FILE = 'model = "tiny"\nmicro_batch = 1\nmicro_batches = 3\nsteps = 5000\n'


def calls(command: Path) -> list[str]:
    path = Path(f"{command}.calls")
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.sh"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("line", ["./train.sh", "sh train.sh", "train.sh --lr 1e-4 'a b'"])
def test_a_script_that_is_named(bsub: Bsub, real: Path, script: Path, limit_s: Ask, line: str) -> None:
    submitted = bsub(line, command=real)
    asked_s = limit_s(FIELDS)
    minutes = -(-asked_s // 60)
    assert submitted.limit_s == asked_s
    assert submitted.said == (
        f"kernelcast: run limit {minutes // 60}:{minutes % 60:02} (hours:minutes), as predicted\n"
    )
    assert (submitted.status, submitted.out) == (0, "")


def test_a_script_on_standard_input(bsub: Bsub, real: Path, limit_s: Ask) -> None:
    # bsub < train.sh: the command line is the script.
    assert bsub(SCRIPT, command=real).limit_s == limit_s(FIELDS)
    quotes = SCRIPT + 'echo "a" > b\nLSB=1\n'
    assert bsub(quotes, command=real).limit_s == limit_s(FIELDS)


def test_a_job_file_in_the_folder(bsub: Bsub, real: Path, limit_s: Ask, folder: Path) -> None:
    (folder / "kernelcast.toml").write_text(JOB_FILE)
    asked_s = limit_s("model=tiny micro_batch=1 micro_batches=3 steps=5000")
    assert bsub("python train.py", command=real).limit_s == asked_s
    assert bsub(None, command=real).limit_s == asked_s  # LSB_SUB_COMMANDNAME is not set
    # A person waits for it.
    assert bsub("bash", command=real, options={"LSB_SUB_INTERACTIVE": "Y"}).limit_s is None


@pytest.mark.parametrize(
    "options", [{"LSB_SUB_RLIMIT_RUN": "600"}, {"LSB_SUB_RLIMIT_RUN": "SUB_RESET"}, {"LSB_SUB_MODIFY": "Y"}]
)
def test_a_given_limit_is_kept(bsub: Bsub, real: Path, script: Path, options: dict[str, str]) -> None:
    submitted = bsub("./train.sh", command=real, options=options)
    assert (submitted.status, submitted.changes, submitted.said, calls(real)) == (0, "", "", [])


@pytest.mark.parametrize("invoked", ["bmod", "brestart", "lsrun"])
def test_other_commands_are_left_alone(bsub: Bsub, real: Path, script: Path, invoked: str) -> None:
    for environment in ({}, {"LSB_SUB_PARM_FILE": ""}):
        submitted = bsub("./train.sh", command=real, LSF_INVOKE_CMD=invoked, **environment)
        assert (submitted.status, submitted.changes, submitted.said, calls(real)) == (0, "", "", [])


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("#!/bin/sh\ntrue\n", {}),
        ("#!/bin/sh\n# KERNELCAST steps=1\n", {}),
        (SCRIPT + "#KERNELCAST off\n", {}),
        (SCRIPT, {"KERNELCAST": "off"}),
    ],
)
def test_who_does_not_ask_is_left_alone(
    bsub: Bsub, real: Path, script: Path, text: str, environment: dict[str, str]
) -> None:
    script.write_text(text)
    for line in ("./train.sh", text):
        submitted = bsub(line, command=real, **environment)
        assert (submitted.status, submitted.changes, submitted.said, calls(real)) == (0, "", "", [])


@pytest.mark.parametrize(
    "text",
    ["$(touch x)", "'; touch x; '", '"; touch x; "', "ü 日本", "\\udcff", "-o x", "\\"],
)
def test_hostile_texts_are_only_texts(
    bsub: Bsub, real: Path, script: Path, limit_s: Ask, folder: Path, text: str
) -> None:
    name = {"LSB_SUB_JOB_NAME": '"' + text.replace('"', '\\"') + '"'}
    assert bsub(f"./train.sh {text}", command=real, options=name).limit_s in (limit_s(FIELDS), None)
    assert bsub("./train.sh", command=real, options=name).limit_s == limit_s(FIELDS)
    script.write_text(f"#KERNELCAST tokens={text}\n{SCRIPT}")
    submitted = bsub("./train.sh", command=real)
    assert (submitted.status, submitted.changes) == (0, "")
    assert submitted.said.endswith("kernelcast: submitted without a predicted run limit\n")
    assert not (folder / "x").exists()


def test_a_named_pipe_is_not_waited_for(bsub: Bsub, real: Path, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert bsub("./pipe", command=real).changes == ""


def test_hanging_commands(bsub: Bsub, hanging: Path, gone: Callable[[Path], bool], script: Path) -> None:
    submitted = bsub("./train.sh", command=hanging, timeout=2)
    assert (submitted.status, submitted.changes) == (0, "")
    assert submitted.said.startswith("kernelcast: no answer within 2 s\n")
    assert gone(hanging)


@pytest.mark.parametrize(
    "text",
    [
        "exit 97\n",
        "echo soon\n",
        "echo 5\n",
        "echo 01:00:00; exit 1\n",
        "echo 01:00:00; echo\n",
        "echo 00:00:00\n",
    ],
)
def test_answers_that_are_none(bsub: Bsub, program: Program, script: Path, text: str) -> None:
    submitted = bsub("./train.sh", command=program(text))
    assert (submitted.status, submitted.changes) == (0, "")


def test_no_command(bsub: Bsub, script: Path, tmp_path: Path) -> None:
    submitted = bsub("./train.sh", command=tmp_path / "none")
    assert (submitted.status, submitted.changes) == (0, "")
    assert "No such file or directory" in submitted.said


def test_a_damaged_bundle(bsub: Bsub, real: Path, script: Path, tmp_path: Path) -> None:
    (tmp_path / "test.kcast").write_bytes(b"PK\x03\x04 not a bundle")
    submitted = bsub("./train.sh", command=real)
    assert (submitted.status, submitted.changes) == (0, "")
    assert submitted.said.startswith(f"kernelcast: error: bundle {tmp_path}/test.kcast: ")


@pytest.mark.parametrize("name", ["LSB_SUB_PARM_FILE", "LSB_SUB_MODIFY_FILE"])
def test_a_file_that_is_not_there(bsub: Bsub, real: Path, script: Path, name: str) -> None:
    submitted = bsub("./train.sh", command=real, **{name: "/none/file"})
    assert (submitted.status, submitted.changes) == (0, "")
    assert "No such file or directory" in submitted.said
