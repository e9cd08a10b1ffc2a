"""The frobnicator plugin sets the duration of jobs that describe themselves and have none, and lets all others be."""

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[[str], int]
Program = Callable[[str], Path]
Ingest = Callable[..., Any]

FIELDS = "model=tiny micro_batch=1 micro_batches=3 steps=1e6"
SCRIPT = f"#!/bin/bash\n#KERNELCAST {FIELDS}\nsrun true\n"
ME, SOMEBODY = os.getuid(), os.getuid() + 1


def job(
    folder: Path,
    *,
    script: str | None = SCRIPT,
    duration: float = 0.0,
    fields: Any = None,
    nodes: int | None = None,
    gpus: Any = 1,
    **system: Any,
) -> dict[str, Any]:
    """A jobspec (RFC 25) of `flux batch`, or of `flux submit` without a script."""
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}
    if gpus:
        slot["with"].append({"type": "gpu", "count": gpus})  # type: ignore[attr-defined]
    attributes: dict[str, Any] = {
        "system": {"duration": duration, "cwd": str(folder), "environment": {"PATH": "/bin"}, **system}
    }
    if script is not None:
        attributes["system"].setdefault(
            "files", {"script": {"mode": 33216, "data": script, "encoding": "utf-8"}}
        )
    if fields is not None:
        attributes["user"] = {"kernelcast": fields}
    return {
        "version": 1,
        "resources": [slot] if nodes is None else [{"type": "node", "count": nodes, "with": [slot]}],
        "tasks": [{"command": ["{{tmpdir}}/script"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": attributes,
    }


def duration(jobspec: Any) -> Any:
    return jobspec["attributes"]["system"].get("duration")


@pytest.mark.parametrize("userid", [ME, SOMEBODY])
def test_a_script_that_describes_itself(
    ingest: Ingest, real: Path, limit_s: Ask, tmp_path: Path, userid: int
) -> None:
    before = job(tmp_path)
    after = ingest(before, userid=userid, command=real)
    assert duration(after) == limit_s(FIELDS)
    after["attributes"]["system"]["duration"] = 0.0
    assert after == before  # nothing else changes


def test_an_explicit_duration_is_kept(ingest: Ingest, real: Path, tmp_path: Path) -> None:
    before = job(tmp_path, duration=90.0)
    assert ingest(before, userid=ME, command=real) == before
    assert not Path(f"{real}.calls").exists()


def test_attributes_of_the_command_line(ingest: Ingest, real: Path, limit_s: Ask, tmp_path: Path) -> None:
    # flux submit --setattr=user.kernelcast.model=tiny …: JSON values.
    fields = {
        "model": "tiny",
        "micro_batch": 1,
        "micro_batches": 3,
        "steps": 2000,
        "sequence_parallel": False,
    }
    asked = limit_s("model=tiny micro_batch=1 micro_batches=3 steps=2000")
    assert duration(ingest(job(tmp_path, script=None, fields=fields), userid=SOMEBODY, command=real)) == asked
    # With lines of a script, whose line numbers stay the same.
    script = SCRIPT.replace("steps=1e6", "steps=2000")
    found = ingest(job(tmp_path, script=script, fields={"margin": "50%"}), userid=SOMEBODY, command=real)
    assert duration(found) == pytest.approx(asked * 1.5 / 1.1, abs=120)
    layout = {**fields, "pp": 2, "layer_counts": [3, 1]}
    assert duration(ingest(job(tmp_path, script=None, fields=layout, gpus=2), userid=ME, command=real)) > 0


def test_a_job_file_counts_for_the_owner_only(
    ingest: Ingest, real: Path, limit_s: Ask, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernelcast.toml").write_text(
        'model = "tiny"\nmicro_batch = 1\nmicro_batches = 3\nsteps = 5000\n'
    )
    plain = job(tmp_path, script="#!/bin/sh\ntrue\n")
    asked = limit_s("model=tiny micro_batch=1 micro_batches=3 steps=5000")
    assert duration(ingest(plain, userid=ME, command=real)) == asked
    assert duration(ingest(plain, userid=SOMEBODY, command=real)) == 0
    # A folder's file is not for every command that runs there.
    assert duration(ingest(job(tmp_path, script=None), userid=ME, command=real)) == 0
    named = job(tmp_path, script="#!/bin/sh\n#KERNELCAST bundle=/etc/passwd\n")
    assert duration(ingest(named, userid=SOMEBODY, command=real)) == 0
    assert "bundle is '/etc/passwd', expected none (the site chooses it)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "gpus", "fits"), [(None, 4, True), (2, 2, True), (1, 4, True), (None, 3, False), (2, 4, False)]
)
def test_the_layout_must_have_the_gpus_of_the_job(
    ingest: Ingest,
    real: Path,
    tmp_path: Path,
    nodes: int | None,
    gpus: int,
    fits: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    script = SCRIPT.replace("steps", "pp=2 dp=2 steps")
    found = duration(ingest(job(tmp_path, script=script, nodes=nodes, gpus=gpus), userid=ME, command=real))
    assert (found > 0) is fits
    assert ("has 4 GPU(s), expected" in capfd.readouterr().err) is not fits


def test_ranges_are_left_to_flux(ingest: Ingest, real: Path, tmp_path: Path) -> None:
    assert duration(ingest(job(tmp_path, gpus={"min": 1, "max": 8}), userid=ME, command=real)) > 0
    assert duration(ingest(job(tmp_path, gpus=None), userid=ME, command=real)) > 0


@pytest.mark.parametrize(
    "changed",
    [
        {"script": "#!/bin/sh\n# KERNELCAST steps=1\n"},
        {"script": SCRIPT + "#KERNELCAST off\n"},
        {"fields": "off"},
        {"fields": False},
        {"environment": {"KERNELCAST": "off"}},
        {"script": None},
    ],
)
def test_who_does_not_ask_is_left_alone(
    ingest: Ingest, real: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    before = job(tmp_path, **changed)
    assert ingest(before, userid=ME, command=real) == before
    assert not Path(f"{real}.calls").exists()


def test_bytes_that_are_not_utf8(ingest: Ingest, real: Path, limit_s: Ask, tmp_path: Path) -> None:
    data = base64.b64encode(SCRIPT.encode() + b"\xff\xfe\n").decode()
    files = {"script": {"mode": 33216, "data": data, "encoding": "base64"}}
    assert duration(ingest(job(tmp_path, files=files), userid=ME, command=real)) == limit_s(FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "$(touch x)",
        "`touch x`",
        "'; touch x; '",
        "a\n#KERNELCAST steps=1",
        "-o/x",
        "\ud800",
        "ü 日本",
        "\033[31m",
    ],
)
def test_hostile_texts_are_only_texts(
    ingest: Ingest, real: Path, tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "submit"
    folder.mkdir()
    # As a field's value, as a field's name, in a line, and as the job's name.
    for fields in ({"tokens": text}, {text: 1}, text):
        before = job(folder, script="#!/bin/sh\n", fields=fields, job={"name": text})
        assert ingest(before, userid=ME, command=real) == before
    said = capfd.readouterr().err
    assert "submitted without a predicted time limit" in said
    assert "\033" not in said
    assert not list(folder.iterdir())


def test_a_hostile_name_keeps_no_time_away(ingest: Ingest, real: Path, limit_s: Ask, tmp_path: Path) -> None:
    named = job(tmp_path, job={"name": "$(touch x)'; touch x; '\n#KERNELCAST steps=1\ud800\033[31m"})
    assert duration(ingest(named, userid=ME, command=real)) == limit_s(FIELDS)
    assert not (tmp_path / "x").exists()


def test_hanging_commands(
    ingest: Ingest,
    hanging: Path,
    gone: Callable[[Path], bool],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = job(tmp_path)
    assert ingest(before, userid=ME, command=hanging, timeout=2) == before
    assert "kernelcast: no answer within 2 s" in capfd.readouterr().err
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
def test_answers_that_are_none(ingest: Ingest, program: Program, tmp_path: Path, text: str) -> None:
    before = job(tmp_path)
    assert ingest(before, userid=ME, command=program(text)) == before


def test_no_command(ingest: Ingest, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = job(tmp_path)
    assert ingest(before, userid=ME, command=tmp_path / "none") == before
    assert "No such file or directory" in capfd.readouterr().err


def test_a_damaged_bundle(
    ingest: Ingest, real: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.kcast").write_bytes(b"PK\x03\x04 not a bundle")
    before = job(tmp_path)
    assert ingest(before, userid=ME, command=real) == before
    assert f"error: bundle {tmp_path}/test.kcast: " in capfd.readouterr().err


def test_a_strange_jobspec_is_no_reason_to_refuse_it(ingest: Ingest, real: Path, tmp_path: Path) -> None:
    before = job(tmp_path)
    before["resources"] = None
    before["attributes"]["system"]["files"] = []
    assert ingest(before, userid=ME, command=real) == before


def test_a_warm_predictor(ingest: Ingest, warm: Path, tmp_path: Path) -> None:
    assert duration(ingest(job(tmp_path, nodes=2, gpus=4), userid=SOMEBODY, command=warm)) == 6_000
    assert (tmp_path / "bin" / "curl.input").read_text() == SCRIPT
