"""The queuejob hook sets the walltime of jobs that describe themselves and have none, and never rejects one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[[str], int]
Program = Callable[[str], Path]
Queue = Callable[..., Any]

FIELDS = "model=tiny micro_batch=1 micro_batches=3 steps=1e6"
SAID = {"KERNELCAST": FIELDS, "PBS_O_WORKDIR": "/home/user"}


def calls(command: Path) -> list[str]:
    path = Path(f"{command}.calls")
    return path.read_text().splitlines() if path.exists() else []


def test_a_job_that_describes_itself(queue: Queue, real: Path, limit_s: Ask) -> None:
    queued = queue(SAID, command=real, ncpus=4)
    assert queued.walltime == limit_s(FIELDS)
    assert queued.resources["ncpus"] == 4
    assert queued.log == []


def test_values_with_commas(queue: Queue, real: Path) -> None:
    fields = FIELDS + " pp=2 layer_counts=3,1"
    found = {
        queue({"KERNELCAST": value}, command=real).walltime
        for value in (fields, f"'{fields}'", f'"{fields}"', fields.replace(",", "\\,"))
    }
    assert len(found) == 1
    assert found.pop()


@pytest.mark.parametrize("resource", ["walltime", "min_walltime"])
def test_a_given_walltime_is_kept(queue: Queue, real: Path, resource: str) -> None:
    queued = queue(SAID, command=real, **{resource: 600})
    assert (queued.resources, queued.log, calls(real)) == ({resource: 600}, [], [])


@pytest.mark.parametrize("variables", [None, {}, {"HOME": "/"}, {"KERNELCAST": "off"}, {"KERNELCAST": " "}])
def test_who_does_not_ask_is_left_alone(queue: Queue, real: Path, variables: dict[str, str] | None) -> None:
    queued = queue(variables, command=real)
    assert (queued.walltime, queued.log, calls(real)) == (None, [], [])


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ({"select": "2:ncpus=8:ngpus=2:mem=4gb"}, 4),
        ({"select": "1:ngpus=3+ngpus=1+4:ncpus=2"}, 4),
        ({"select": "ngpus=1"}, 1),
        ({"ngpus": 4}, 4),
        ({"select": "3:ngpus=4"}, 12),
    ],
)
def test_the_layout_must_have_the_gpus_of_the_job(
    queue: Queue, real: Path, limit_s: Ask, resources: dict[str, Any], gpus: int
) -> None:
    queued = queue({"KERNELCAST": FIELDS + " pp=2 dp=2"}, command=real, **resources)
    if gpus == 4:
        assert queued.walltime == limit_s(FIELDS + " pp=2 dp=2")
    else:
        assert queued.walltime is None
        assert f"has 4 GPU(s), expected {gpus}" in queued.log[0]


def test_jobs_without_gpus_of_their_own(queue: Queue, real: Path, limit_s: Ask) -> None:
    assert queue(SAID, command=real, select="2:ncpus=8").walltime == limit_s(FIELDS)
    assert "--slurm" not in calls(real)[-1]


@pytest.mark.parametrize("field", ["bundle=/etc/passwd", "model=/etc/passwd.toml", "model=../x.json"])
def test_no_file_of_a_users_is_opened(queue: Queue, real: Path, field: str) -> None:
    queued = queue({"KERNELCAST": "micro_batch=1 micro_batches=3 steps=1 " + field}, command=real)
    assert queued.walltime is None
    assert queued.log[0].startswith(f"kernelcast: error: batch script line 1: {field.partition('=')[0]} is ")


@pytest.mark.parametrize(
    "text",
    [
        "$(touch /tmp/kernelcast-x)",
        "`x`",
        "'; x; '",
        "a\nb",
        "\ud800",
        "ü 日本",
        "\033[31m",
        "--help",
        "a=b=c",
    ],
)
def test_hostile_texts_are_only_texts(queue: Queue, real: Path, text: str) -> None:
    queued = queue({"KERNELCAST": text}, command=real)
    assert queued.walltime is None
    assert queued.log[-1] == "kernelcast: queued without a predicted walltime"
    assert all(line.isprintable() for line in queued.log)
    assert queue({"KERNELCAST": FIELDS, "A": text}, command=real, select=text).walltime is not None
    assert not Path("/tmp/kernelcast-x").exists()


def test_hanging_commands(queue: Queue, hanging: Path, gone: Callable[[Path], bool]) -> None:
    queued = queue(SAID, command=hanging, timeout=2)
    assert queued.walltime is None
    assert queued.log == [
        "kernelcast: no answer within 2 s",
        "kernelcast: queued without a predicted walltime",
    ]
    assert gone(hanging)


@pytest.mark.parametrize(
    "text",
    [
        "exit 3\n",
        "echo soon\n",
        "echo 5\n",
        "echo 01:00:00; exit 1\n",
        "echo 01:00:00; echo\n",
        "echo 00:00:00\n",
    ],
)
def test_answers_that_are_none(queue: Queue, program: Program, text: str) -> None:
    assert queue(SAID, command=program(text)).walltime is None


def test_no_command(queue: Queue, tmp_path: Path) -> None:
    queued = queue(SAID, command=tmp_path / "none")
    assert queued.walltime is None
    assert "No such file or directory" in queued.log[0]


def test_a_damaged_bundle(queue: Queue, real: Path, tmp_path: Path) -> None:
    (tmp_path / "test.kcast").write_bytes(b"PK\x03\x04 not a bundle")
    queued = queue(SAID, command=real)
    assert queued.walltime is None
    assert queued.log[0].startswith(f"kernelcast: error: bundle {tmp_path}/test.kcast: ")


def test_a_strange_job_is_no_reason_to_reject_it(queue: Queue, real: Path) -> None:
    assert queue({"KERNELCAST": FIELDS}, command=real, ngpus="many").walltime is None
    assert queue(3, command=real).walltime is None


def test_a_warm_predictor(queue: Queue, warm: Path, tmp_path: Path) -> None:
    assert queue(SAID, command=warm, select="2:ngpus=4").walltime == 6_000
    assert (tmp_path / "bin" / "curl.input").read_text() == f"#KERNELCAST {FIELDS}"
