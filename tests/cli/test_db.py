"""`kernelcast db`: every verb as it is typed, what it prints, and that errors are one line."""

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.cli.db import db
from kernelcast.cli.option import parse_size
from kernelcast.store import Database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

SMALL = Path(__file__).parent.parent / "data" / "small.db"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small measured database, in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SMALL, tmp_path / "small.db")
    return Path("small.db")


def run(capsys: Capture, *arguments: str, status: int = 0) -> str:
    found = ended("db", *arguments)
    printed = capsys.readouterr()
    assert found == status, printed
    if status == 0:
        assert printed.err == ""
    else:
        assert printed.err.count("\n") <= 1
    return printed.out or printed.err


def test_info(small: Path, capsys: Capture) -> None:
    out = run(capsys, "info", "small.db")
    with Database.open(small, read_only=True) as database:
        assert f"content digest {database.content_digest()}" in out
    assert "1,627" in out
    document = json.loads(run(capsys, "info", "small.db", "--json"))
    assert document["format"] == "kernelcast.database/1"
    assert document["rows"]["kernel"] == 1627
    assert [row["samples"] for row in document["hardware"]] == [49, 20, 8]


def test_check(small: Path, capsys: Capture) -> None:
    assert run(capsys, "check", "small.db") == "small.db: sound\n"
    with sqlite3.connect(small) as connection:
        connection.execute("CREATE TRIGGER theirs AFTER INSERT ON run BEGIN DELETE FROM sample; END")
        connection.execute("CREATE VIEW theirs_too AS SELECT 1")
    connection.close()
    lines = run(capsys, "check", "small.db", status=1).splitlines()
    assert lines == [
        "small.db: schema: trigger 'theirs' is not kernelcast's (1 more differences); expected exactly the tables and"
        " views of schema.sql, nothing was read from it"
    ]
    for verb in (
        ["info", "small.db"], ["query", "small.db", "SELECT 1"], ["diff", "small.db", "small.db"],
        ["export", "small.db", "out.db"], ["merge", "small.db", "--into", "out.db"],
    ):  # fmt: skip
        error = run(capsys, *verb, status=1)
        assert error.startswith("kernelcast: error: small.db: schema: trigger 'theirs' is not kernelcast's")
        assert "(1 more differences); expected exactly" in error
        assert error.endswith("nothing was read from it\n")
        assert not Path("out.db").exists()


def test_merge(small: Path, capsys: Capture) -> None:
    lines = run(capsys, "merge", "small.db", "small.db", "--into", "all.db").splitlines()
    assert lines[0].startswith(
        "small.db: 3 hardware, 1 fabric, 3 software, 2 source, 6 run, 77 sample, 1 trace, 54 unrecognised_kernel,"
    )
    assert lines[1] == "small.db: nothing new"
    assert lines[2].startswith("all.db: content digest ")
    assert run(capsys, "diff", "small.db", "all.db") == "same content\n"


def test_diff(small: Path, capsys: Capture) -> None:
    hardware = json.loads(run(capsys, "info", "small.db", "--json"))["hardware"][-1]["id"]
    run(capsys, "export", "small.db", "part.db", "--hardware-id", hardware)
    out = run(capsys, "diff", "part.db", "small.db")
    assert "only in A (part.db)" in out
    assert "threads 2 → 1" in out
    document = json.loads(run(capsys, "diff", "part.db", "small.db", "--json"))
    assert document["only_in_b"]["sample"] == 69
    assert {new["kind"] for new in document["new_fingerprints"]} == {"hardware", "fabric", "software"}


def test_diff_after_an_upgrade(small: Path, capsys: Capture) -> None:
    # The same processor measured with another setting of the mathematics library, in a database of its own.
    run(capsys, "export", "small.db", "before.db", "--until", "2026-11-21T04:01:00Z")
    run(capsys, "export", "small.db", "after.db", "--since", "2026-11-21T04:01:00Z", "--operator", "gelu")
    out = run(capsys, "diff", "before.db", "after.db")
    assert "41 samples of A are stale: AMD" in out
    assert "environment [] → [MKL_CBWR=COMPATIBLE]" in out


def test_export(small: Path, capsys: Capture) -> None:
    out = run(capsys, "export", "small.db", "gelu.db", "--operator", "gelu", "--anonymous")
    assert "14 sample" in out
    assert run(capsys, "check", "gelu.db") == "gelu.db: sound\n"
    assert sorted(path.name for path in Path().glob("gelu.db*")) == ["gelu.db"]  # one file, also when read
    assert "exists already" in run(capsys, "export", "small.db", "gelu.db", status=1)
    assert (
        run(capsys, "export", "small.db", "out", "--format", "parquet") == "out: 77 samples, 1,627 kernels\n"
    )


def test_export_says_what_anonymous_keeps(small: Path, capsys: Capture) -> None:
    lines = run(capsys, "export", "small.db", "shared.db", "--anonymous").splitlines()
    assert "kept model names: tiny-gpt" in lines
    assert "kept failure reasons: no fused scale-mask-softmax kernel on device type 'cpu'" in lines


def test_query(small: Path, capsys: Capture) -> None:
    sql = "SELECT operator, count(*) AS samples, NULL AS missing FROM sample GROUP BY operator ORDER BY operator"
    table = run(capsys, "query", "small.db", sql).splitlines()
    assert table[0].split() == ["operator", "samples", "missing"]
    assert table[2].split() == ["all_reduce", "1"]
    rows = list(csv.reader(io.StringIO(run(capsys, "query", "small.db", sql, "--format", "csv"))))
    assert rows[:2] == [["operator", "samples", "missing"], ["all_reduce", "1", ""]]
    [first, *_] = json.loads(run(capsys, "query", "small.db", sql, "--format", "json"))
    assert first == {"operator": "all_reduce", "samples": 1, "missing": None}
    assert json.loads(run(capsys, "query", "small.db", "SELECT 1 WHERE 0", "--format", "json")) == []
    infinite = run(capsys, "query", "small.db", "SELECT 9e999 AS a, -9e999 AS b", "--format", "json")
    assert infinite == '[\n {"a": null, "b": null}\n]\n'
    error = run(capsys, "query", "small.db", "DELETE FROM sample", status=1)
    assert error == "kernelcast: error: small.db: not authorized; expected a query that only reads (SELECT)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["check"],
        ["query", "SELECT 1"],
        ["diff", "small.db"],
        ["export", "out.db"],
        ["serve", "--port", "0"],
    ],
)
def test_a_limit_is_named(small: Path, capsys: Capture, arguments: list[str]) -> None:
    verb, *rest = arguments
    error = run(capsys, verb, "small.db", *rest, "--max-size", "0.0001GiB", status=1)
    size_gib = f"{small.stat().st_size / 2**30:.3g}"
    assert f"small.db: has {size_gib} GiB, the limit is 0.0001 GiB (--max-size raises it)" in error


@pytest.mark.parametrize(
    "verb", [["info"], ["check"], ["query", "SELECT 1"], ["export", "out.db"], ["serve"]]
)
def test_what_is_no_database_is_one_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.db").write_text("operator,time\n" * 10)
    assert "text.db: is not a SQLite database" in run(capsys, verb[0], "text.db", *verb[1:], status=1)
    assert "none.db: no such database" in run(capsys, verb[0], "none.db", *verb[1:], status=1)


def test_the_largest_database_is_as_large_by_default_for_every_verb() -> None:
    for name in db.commands:
        for option in db.commands[name].params:
            if option.name == "max_size_bytes":
                assert parse_size(option.default, name="max_size") == DEFAULT_MAX_SIZE_BYTES


@pytest.mark.parametrize(("package", "arguments"), [
    ("datasette", ["serve", "small.db", "--port", "0"]),
    ("pyarrow", ["export", "small.db", "out", "--format", "parquet"]),
])  # fmt: skip
def test_a_missing_extra_is_named(small: Path, package: str, arguments: list[str]) -> None:
    extra = {"datasette": "datasette", "pyarrow": "parquet"}[package]
    code = f"import sys; sys.modules['{package}'] = None; from kernelcast.cli.main import main; "
    code += f"main({['db', *arguments]})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install 'kernelcast[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_taken_port_is_named(small: Path, capsys: Capture) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}: cannot be listened on (Address already in use)" in run(
            capsys, "serve", "small.db", "--port", port, status=1
        )
