"""Whatever a stranger's file holds, what is printed moves no cursor, sets no title and turns no line around."""

import csv
import io
import json
import os
import shutil
import sqlite3
import tomllib
import unicodedata
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.cli.progress import progress
from kernelcast.cli.terminal import printable_streams
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.small_file import toml_document
from tests.cli.printed import ended
from tests.cli.test_terminal import on_a_terminal

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\u2066forged\r\nsound"


def is_printable(text: str) -> bool:
    """No controls but ends of lines and tabs."""
    return not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\t"]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A database whose descriptions are hostile."""
    path = tmp_path / "labelled.db"
    shutil.copy(DATA / "small.db", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("hardware", "fabric", "software"):
            connection.execute(f"UPDATE {table} SET description = ?", [HOSTILE])
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["info"],
        ["query", "SELECT description FROM hardware"],
        ["query", "SELECT description FROM hardware", "--format", "csv"],
        ["query", "SELECT description FROM hardware", "--format", "json"],
        ["query", "SELECT description AS '\x1b[31m' FROM hardware"],
        ["query", 'SELECT * FROM "\x1b[31m\u202e"'],
    ],
)
def test_a_database(labelled: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ended("db", words[0], labelled, *words[1:])
    found = capsys.readouterr()
    assert is_printable(found.out + found.err)
    assert "\\x1b" in found.out + found.err or "\\u001b" in found.out
    assert "\nsound" not in found.out or "csv" in words


def test_labels_that_do_not_fit(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("db", "check", labelled) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("its fingerprint's is 'unknown CPU'" in line for line in lines) == 1
    assert all(": description is '\\x1b]0;owned" in line for line in lines)
    assert len(lines) == 7


def test_machines_read_what_it_was(labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended("db", "query", labelled, "SELECT description FROM hardware LIMIT 1", "--format", "json")
    assert json.loads(capsys.readouterr().out) == [{"description": HOSTILE}]
    assert json.loads(json_text({HOSTILE: HOSTILE})) == {HOSTILE: HOSTILE}
    assert tomllib.loads(toml_document({"name": HOSTILE})) == {"name": HOSTILE}
    assert is_printable(toml_document({"name": HOSTILE}) + json_text([HOSTILE]))
    ended("db", "query", labelled, "SELECT description FROM hardware LIMIT 1", "--format", "csv")
    [_, [cell]] = csv.reader(io.StringIO(capsys.readouterr().out))
    assert cell.startswith("\\x1b]0;owned\\x07")


def test_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace\x1b[31m.json"
    trace = json.loads((DATA / "traces" / "cuda.json").read_text())
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            event["name"] += HOSTILE
    path.write_text(json.dumps(trace))
    ended("trace", "report", path)
    ended("ingest", path, "--db", tmp_path / "new.db")
    ended("trace", "diff", path, tmp_path / "none\u202e.json")
    found = capsys.readouterr()
    assert is_printable(found.out + found.err)
    assert "\\x1b" in found.out


def test_errors_of_click(capsys: pytest.CaptureFixture[str]) -> None:
    ended("db", "info", "a", HOSTILE)
    ended(HOSTILE)
    ended("predict", "--tp", HOSTILE)
    text = capsys.readouterr().err
    assert is_printable(text)
    assert text.count("kernelcast: error: ") == text.count("\n") == 3


def test_in_colours(labelled: Path) -> None:
    found = on_a_terminal(f"db info {labelled}", columns=200)
    assert "\x1b[2mnext:\x1b[0m" in found
    assert is_printable(found.replace("\x1b[2m", "").replace("\x1b[0m", ""))
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\x7f\\u202e" in found


def test_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = os.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    with os.fdopen(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        patch.setattr("sys.stdout", terminal)
        with printable_streams(), progress(HOSTILE) as report:
            report(1, 2, HOSTILE)
            print("above" + HOSTILE)
            report(2, 2, HOSTILE)
    shown = os.read(leader, 1 << 20).decode()
    os.close(leader)
    assert "]0;owned" in shown
    for control in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\x7f", "\u202e"):
        assert control not in shown


def test_bytes_and_runners() -> None:
    found = CliRunner().invoke(kernelcast, ["bundle", "info", HOSTILE])
    assert is_printable(found.output)
