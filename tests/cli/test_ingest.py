"""`kernelcast ingest`: what it prints, what it stores, how it fails; and docs/ingesting.md, run as it is written."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.store import Database
from tests.cli.printed import printed

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "ingesting.md"
TRACES = ROOT / "tests" / "data" / "traces"


def test_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "bench.db"
    lines = printed(capsys, "ingest", TRACES / "cuda.json", "--db", database).splitlines()
    assert lines[0].split() == ["trace", "device", "rank", "events", "kernels", "kernels", "ms", "attributed",
                                "%", "recognised", "%"]  # fmt: skip
    assert lines[2].split() == ["cuda.json", "Example", "GPU", "3", "17", "7", "0.322", "85.4", "0.0"]
    assert "not recognised: 7 kernels; the longest:" in lines
    [tail] = [line.split() for line in lines if line.split()[:2] == ["aten::linear", "slow_tail"]]
    assert tail[2] == "1"
    assert " ".join(" ".join(lines).split()).endswith(f"{database}: 1 trace(s) of 1 run(s) added, 0 samples")
    again = printed(capsys, "ingest", TRACES / "cuda.json", "--db", database)
    assert " ".join(again.split()) == f"{database}: 0 trace(s) of 0 run(s) added, 0 samples, 1 already there"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "ingest",
        TRACES / "cuda.json",
        "--db",
        tmp_path / "bench.db",
        "--json",
        "--site",
        "Example site",
    )
    document = json.loads(printed(capsys, *arguments))
    assert document["format"] == "kernelcast.ingested/1"
    [trace] = document["traces"]
    assert (trace["file"], trace["rank"], trace["kernels"], trace["added"]) == ("cuda.json", 3, 7, True)
    assert trace["unrecognised"][0]["kernel"] == "slow_tail"
    assert json.loads(printed(capsys, *arguments))["traces"] == [{"file": "cuda.json", "added": False}]
    with Database.open(tmp_path / "bench.db") as database:
        assert [found.site for found in database.run_list()] == ["Example site"]


def test_what_is_no_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, database = tmp_path / "bad.json", tmp_path / "bench.db"
    bad.write_text('{"traceEvents": [')
    error = printed(capsys, "ingest", TRACES / "cuda.json", bad, "--db", database, status=1)
    assert error.startswith(f"kernelcast: error: {bad}: not readable as JSON")
    assert error.count("\n") == 1
    assert not database.exists()
    big = printed(
        capsys, "ingest", TRACES / "cuda.json", "--db", database, "--max-size", "0.000001GiB", status=1
    )
    assert "more than 1073 bytes of JSON" in big


@pytest.mark.slow
def test_the_page_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    [recording] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", recording], check=True, capture_output=True, timeout=600)
    blocks = re.findall(r"```\n(kernelcast .*?)```", page, re.DOTALL)
    assert len(blocks) == 5
    found = {}
    for block in blocks:
        for line in re.split(r"\n(?=kernelcast )", block.strip()):
            arguments = shlex.split(line)[1:]
            if "rank*.json.gz" in arguments:
                place = arguments.index("rank*.json.gz")
                arguments[place : place + 1] = sorted(map(str, Path().glob("rank*.json.gz")))
            found[line] = printed(capsys, *arguments)
    first = next(text for line, text in found.items() if line.startswith("kernelcast ingest"))
    for operator, role, occurrences in (
        ("gemm", "qkv", 6),
        ("gemm", "logits", 3),
        ("layer_norm", "", 12),
        ("flash_attention", "", 6),
    ):
        for direction in ("forward", "backward"):
            assert re.search(
                rf"^{operator} +{role} *{direction} +float32 +1 +{occurrences}$", first, re.MULTILINE
            )
    slowest = next(text for line, text in found.items() if "operator_time" in line)
    assert "gemm" in slowest


def test_a_cut_file_is_read_up_to_the_break_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (TRACES / "cuda.json").read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: len(whole) * 4 // 5])
    database = tmp_path / "bench.db"
    assert "not readable as JSON" in printed(capsys, "ingest", cut, "--db", database, status=1)
    assert not database.exists()
    lines = printed(capsys, "ingest", cut, "--db", database, "--partial").splitlines()
    assert "cut.json: the file is cut off: read up to there" in lines
