"""`kernelcast trace`: what it shows of made-up runs, what it refuses."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.docs import example_traces
from tests.cli.printed import ended, printed

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces of two made-up ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    example_traces.write(folder)
    return folder


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    document = json.loads(printed(capsys, "trace", "report", *arguments, "--json"))
    assert document["format"] == "kernelcast.trace_report/1"
    [one] = document["runs"]
    return one


def test_a_folder_of_ranks_is_a_run(ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = report(capsys, ranks)
    assert [(row["rank"], row["times_last"]) for row in one["ranks"]] == [(1, 4), (0, 0)]
    for step in one["steps"]:
        parts = [step[part] for part in ("compute_ms", "exposed_communication_ms", "memory_ms", "idle_ms")]
        assert sum(parts) == pytest.approx(step["device_ms"], abs=2e-3)
    assert sum(
        row["percent_of_busy"] for row in report(capsys, ranks, "--top", 999)["kernels"]
    ) == pytest.approx(100, abs=1)
    database = tmp_path / "bench.db"
    printed(capsys, "ingest", *sorted(ranks.iterdir()), "--db", database)
    assert report(capsys, database) == one
    assert report(capsys, database, "--run", one["run_id"][:5]) == one


def test_rates_of_other_operators(ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {row["operator"]: row for row in report(capsys, ranks)["rates"]}
    norm = rates["layer_norm"]
    # Both ranks, 2 steps, 2 layers; a norm reads and writes 4096 rows of 2048 in 16 bit, an H100 3.35 TB/s.
    moved_bytes = 2 * 2 * 4096 * 2048
    assert (norm["calls"], norm["bound"]) == (8, "memory")
    assert norm["gb_per_s"] == pytest.approx(moved_bytes / norm["mean_us"] / 1e3, rel=1e-3)
    assert norm["percent_of_roofline"] == pytest.approx(100 * norm["gb_per_s"] / 3350, abs=0.1)
    assert "gemm" not in rates


def test_the_critical_path_of_a_step(ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = report(capsys, ranks, "--top", 99)
    assert sum(row["percent_of_path"] for row in one["path"]) == pytest.approx(
        100, abs=0.05 * len(one["path"])
    )
    assert all(-1e-3 <= row["half_saves_ms"] <= row["path_ms"] / 2 + 1e-3 for row in one["path"])
    # Both ranks wait for rank 1, whose products take a quarter longer, in the exposed all-reduce.
    gemm = next(row for row in one["kernels"] if row["kernel"] == "gemm_up")
    [ups] = [row["path_ms"] for row in one["path"] if row["part"] == "gemm mlp_up (forward)"]
    assert ups == pytest.approx(gemm["total_ms"] / 2 * 1.25 / 2.25, rel=1e-3)  # two steps, both ranks


def test_a_report_as_text_and_page(ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    lines = printed(capsys, "trace", "report", ranks, "--html", page).splitlines()
    assert any(line.split()[:2] == ["exposed", "communication"] for line in lines)
    assert lines[-1] == f"{page}: written"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "rank 1, stream 20" in text
    zooms = re.findall(r'<input type="radio" name="zoom-(\w+)" value="(\d)"( checked)?', text)
    assert [name for name, factor, checked in zooms if checked and factor == "1"] == ["lanes", "flames"]
    assert all(f'[value="{factor}"]:checked' in text for _, factor, _ in zooms if factor != "1")
    # The passes of the flame graph fill its width, as in the table.
    found = re.findall(r'<path d="M[\d.]+ 0h[^>]*><title>(\w+), [^<]*, ([\d.]+) %', text)
    shares = {name: float(percent) for name, percent in found}
    rows = {row["pass"]: row["percent_of_busy"] for row in report(capsys, ranks)["passes"]}
    assert sum(shares.values()) == pytest.approx(100, abs=0.2)
    assert (shares["backward"], shares["communication"]) == (rows["backward"], rows["communication"])
    assert "<script" not in text


def test_what_became_slower(ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(
        printed(capsys, "trace", "diff", ranks / "rank0.json", ranks / "rank1.json", "--json")
    )
    changes = {row["name"]: row for row in document["kernels"]}
    assert changes["gemm_up"]["change"] == "slower"
    assert changes["gemm_up"]["two_ms"] == pytest.approx(1.25 * changes["gemm_up"]["one_ms"], rel=1e-3)
    assert changes["gelu_kernel"]["change"] == ""
    assert document["step"]["change_ms"] == pytest.approx(
        sum(part["change_ms"] for part in document["parts"])
    )
    lines = printed(
        capsys, "trace", "diff", ranks / "rank0.json", ranks / "rank1.json", "--top", 3
    ).splitlines()
    assert lines[0] == "per step and rank; steps: 1 of A, 1 of B"
    operators = {row["name"]: row for row in document["operators"]}
    forward = operators["aten::mm (forward)"]
    assert forward["two_ms"] == pytest.approx(1.25 * forward["one_ms"], rel=1e-3)
    assert forward["one_launches"] == 8
    [module] = document["modules"]
    norms, gelus = (operators[f"aten::{name} (forward)"]["one_ms"] for name in ("layer_norm", "gelu"))
    assert module["name"] == "forward"
    assert module["one_ms"] >= forward["one_ms"] + norms + gelus


def test_two_runs_on_a_page(ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "difference.html"
    printed(capsys, "trace", "diff", ranks / "rank0.json", ranks / "rank1.json", "--html", page)
    text = page.read_text()
    for shown in (
        "rank0.json",
        "rank1.json",
        "exposed communication",
        "gemm_up",
        "aten::mm (backward)",
        "forward",
    ):
        assert shown in text
    assert "25.0" in text


def test_what_is_new_and_gone(ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "changed.json"
    changed.write_text((ranks / "rank0.json").read_text().replace("gelu_kernel", "fused_gelu_kernel"))
    document = json.loads(printed(capsys, "trace", "diff", ranks / "rank0.json", changed, "--json"))
    changes = {row["name"]: row["change"] for row in document["kernels"] if row["change"]}
    assert changes == {"gelu_kernel": "gone", "fused_gelu_kernel": "new"}


def test_what_is_left_out_and_what_is_in_no_step_is_said(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((ranks / "rank0.json").read_text())
    kernel = next(event for event in document["traceEvents"] if event.get("cat") == "kernel")
    first = min(event["ts"] for event in document["traceEvents"] if "ts" in event)
    early = kernel | {"name": "early", "ts": first - 50, "dur": 5, "args": {"device": 0, "stream": 7}}
    document["traceEvents"] += [early, kernel | {"name": "odd", "dur": -1}]
    path, page = tmp_path / "odd.json", tmp_path / "odd.html"
    path.write_text(json.dumps(document))
    said = "odd.json: event without a time that can belong to the trace left out, the first 'odd'"
    for command in (["report", path], ["diff", ranks / "rank0.json", path]):
        assert ended("trace", *command, "--html", page) == 0
        output = capsys.readouterr()
        assert " ".join(output.err.split()).startswith(f"warning: {said}")
        assert said.replace("'", "&#x27;") in page.read_text()
        [note] = json.loads(printed(capsys, "trace", *command, "--json"))["notes"]
        assert note.startswith(said)
        assert ended("trace", *command, "--quiet") == 0
        assert capsys.readouterr().err == ""
    assert "launched before" in printed(capsys, "trace", "report", path)
    *_, row = report(capsys, path)["steps"]
    assert (row["step"], row["outside"], row["events"]) == (None, "launched before the recording", 1)
    for event in document["traceEvents"]:
        event["name"] = event["name"].replace("ProfilerStep#4", "last")
    path.write_text(json.dumps(document))
    assert "outside the" in printed(capsys, "trace", "report", path)


def test_a_step_is_exported_and_read_again(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.json"
    printed(capsys, "trace", "export", ranks / "rank1.json", "-o", whole)
    again, before = report(capsys, whole), report(capsys, ranks / "rank1.json")
    assert again["steps"] == [step | {"trace_id": step["trace_id"]} for step in again["steps"]]
    for name in ("device_ms", "compute_ms", "exposed_communication_ms", "idle_host_ms", "step", "events"):
        assert [step[name] for step in again["steps"]] == [step[name] for step in before["steps"]]
    assert again["kernels"] == before["kernels"]
    part = tmp_path / "part.json"
    printed(capsys, "trace", "export", ranks / "rank1.json", "-o", part, "--step", "4")
    written = json.loads(part.read_text())["traceEvents"]
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in written if one["ph"] == "M"}
    named = [one for one in written if one.get("cat") == "gpu_user_annotation"]
    by_track = {tracks[one["pid"], one["tid"]]: one["name"] for one in named}
    assert by_track["stream 20: operators and collectives"] == "all_reduce"
    assert "gemm mlp_up (backward)" in {one["name"] for one in named}
    [step] = report(capsys, part)["steps"]
    assert (step["step"], step["compute_ms"]) == ("ProfilerStep#4", before["steps"][1]["compute_ms"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "{empty}"], "holds no *.json or *.json.gz"),
        (["report", "{small}", "{ranks}/rank0.json"], "is a database among 2 files"),
        (["report", "{small}", "--run", "ffffffff"], "holds no run ffffffff"),
        (["export", "{ranks}", "-o", "{empty}/x.json"], "expected one of ranks 0, 1"),
        (["export", "{ranks}/rank0.json", "-o", "{empty}/x.json", "--step", "9"],
         "found no step '9', expected one of ProfilerStep#3, ProfilerStep#4"),
        (["report", "{ranks}/none.json"], "no such file, expected a trace or a database"),
        (["report", "{pipe}"], "{pipe}: cannot be read (is a pipe, expected a regular file)"),
        (["report", "{host}"], "{host}: holds no kernel, only events of the host"),
        (["diff", "{host}", "{ranks}"], "{host}: holds no kernel, only events of the host"),
        (["report", "{ranks}/rank0.json", "--run", "ffffffff"], "{ranks}/rank0.json: holds no run ffffffff"),
    ],
)  # fmt: skip
def test_what_is_refused_in_one_line(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    host = tmp_path / "host.txt"
    event = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    host.write_text(json.dumps({"traceEvents": [event]}))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    small = ROOT / "tests" / "data" / "small.db"
    places = {"host": host, "pipe": pipe, "empty": tmp_path, "ranks": ranks, "small": small}
    said = printed(capsys, "trace", *(text.format(**places) for text in arguments), status=1)
    assert message.format(**places) in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_page_runs_as_it_is_written(
    ranks: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    make_bundle: Callable[..., Path],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_bundle(name="here.kcast")
    shutil.copy(ROOT / "docs" / "traced-gpt.toml", tmp_path)
    (tmp_path / "train.log").write_text("elapsed time per iteration (ms): 812.5 |\n")
    (tmp_path / "profiles").mkdir()
    for place, rank in (
        ("rank0", 0),
        ("rank1", 1),
        ("before", 0),
        ("after", 1),
        ("profiles/0", 0),
        ("profiles/1", 1),
    ):
        content = (ranks / f"rank{rank}.json").read_bytes()
        (tmp_path / f"{place}.json.gz").write_bytes(gzip.compress(content))
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    [recording] = re.findall(r"^torchrun (.*)$", text, re.MULTILINE)
    recording = recording.replace("training_step.py", str(ROOT / "docs" / "training_step.py"))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    subprocess.run((*torchrun, *shlex.split(recording)), check=True, capture_output=True, timeout=600)
    commands = re.findall(r"^kernelcast (.*)$", text, re.MULTILINE)
    assert len(commands) == 13
    run_id = report(capsys, "profiles")["run_id"]
    for command in commands:
        words = shlex.split(
            command.replace("--run 3f2a", f"--run {run_id[:6]}").replace("--step 5", "--step 4")
        )
        if words[0] == "ingest":
            words[1:2] = sorted(map(str, Path("profiles").iterdir()))
        assert printed(capsys, *words)
    assert (tmp_path / "bench-parquet" / "traces.sql").exists()
    assert (tmp_path / "ours.toml").read_text().startswith("site = ")
    assert "rank 1, stream 20" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
