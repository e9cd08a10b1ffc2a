"""`answer`: one SELECT, and nothing that writes, attaches, sets or loads."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, querying
from kernelcast.store.querying import answer


@pytest.fixture
def closed(database: Database) -> Path:
    database.close()
    return database.path


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT kind, cores FROM hardware",
        "WITH RECURSIVE n (kind, cores) AS (SELECT 'cpu', 0 UNION ALL SELECT kind, cores + 1 FROM n WHERE cores < 2)"
        " SELECT kind, cores FROM n ORDER BY cores DESC LIMIT 1",
    ],
)
def test_an_answer(closed: Path, sql: str) -> None:
    with answer(closed, sql) as found:
        assert found.columns == ("kind", "cores")
        assert list(found.rows) == [("cpu", 2)]


def test_the_schema_can_be_asked(closed: Path) -> None:
    with answer(closed, "SELECT count(*) FROM pragma_table_info('hardware')") as found:
        assert list(found.rows) == [(18,)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM run_note",
        "UPDATE run_note SET site = ''",
        "INSERT INTO kernel_name (name) VALUES ('x')",
        "DELETE FROM run_note RETURNING site",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x (y)",
        "DROP VIEW coverage",
        "PRAGMA query_only = OFF",
        "PRAGMA trusted_schema = ON",
        "PRAGMA writable_schema = ON",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'copy.db'",
        "BEGIN",
        "COMMIT",
        "SELECT load_extension('x')",
        "REINDEX",
        "SELECT 1; DELETE FROM run_note",
        "SELECT * FROM nothing",
        "SELEC",
        "",
        "-- nothing",
    ],
)
def test_what_is_no_reading_is_refused(closed: Path, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(closed.parent)
    before = closed.read_bytes()
    with pytest.raises(DataError) as caught, answer(closed, sql):
        pass
    assert "\n" not in str(caught.value)
    assert closed.read_bytes() == before
    assert {path.name.removeprefix("bench.db") for path in closed.parent.iterdir()} <= {"", "-wal", "-shm"}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM samples", r"no such table: samples, nearest is sample$"),
        ("SELECT * FROM xyz", r"no such table: xyz$"),
        ("SELECT 1; SELECT 2", r"found several statements, expected one SELECT$"),
    ],
)
def test_a_wrong_statement_is_told_what_is_wrong(closed: Path, sql: str, message: str) -> None:
    with pytest.raises(DataError, match=message), answer(closed, sql):
        pass


def test_a_value_that_cannot_be_read_is_one_line(closed: Path) -> None:
    with pytest.raises(DataError, match="too big"), answer(closed, "SELECT hex(zeroblob(90000000))") as found:
        list(found.rows)


@pytest.mark.slow
def test_a_query_that_computes_for_hours_can_be_interrupted(closed: Path) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    code = "from kernelcast.cli.main import main; print('started', flush=True); "
    code += f"main(['db', 'query', {str(closed)!r}, {endless!r}])"
    asked = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert asked.stdout is not None
    assert asked.stdout.readline() == "started\n"
    computes_s = 0.0  # CPU time, until after all imports, also on a slow and busy machine
    while computes_s < 5 and asked.poll() is None:
        time.sleep(0.1)
        cells = Path(f"/proc/{asked.pid}/stat").read_text().rpartition(")")[2].split()
        computes_s = (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")
    assert asked.poll() is None
    asked.send_signal(signal.SIGINT)
    _, printed = asked.communicate(timeout=300)
    assert "interrupted" in printed
    assert printed.strip().count("\n") == 0
    assert asked.returncode == 130


ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


@pytest.mark.parametrize("sql", [f"{ENDLESS} SELECT max(i) FROM n", f"{ENDLESS} SELECT i FROM n"])
def test_a_query_ends_in_time_whether_it_computes_or_answers(closed: Path, sql: str) -> None:
    with (
        pytest.raises(DataError, match=r"the query takes longer than 0\.2 s \(--time-limit raises it\)"),
        answer(closed, sql, time_limit_s=0.2) as found,
    ):
        sum(1 for _ in found.rows)


def test_who_reads_slowly_is_not_the_query(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(querying, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with answer(closed, "SELECT 1 UNION ALL SELECT 2", time_limit_s=0.2) as found:
        first = next(found.rows)
        now[0] += 0.4
        assert [first, *found.rows] == [(1,), (2,)]
