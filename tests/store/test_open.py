"""Opening: what is refused is named in one line and stays as it was."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, Run
from kernelcast.store import connection as opening
from kernelcast.store.schema import OLDEST_VERSION, SCHEMA_VERSION

APPLICATION_ID = 0x4B434442


def refusal(path: Path, **how: bool) -> str:
    with pytest.raises(DataError) as caught, Database.open(path, **how):
        pass
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def sqlite_file(path: Path, *, application_id: int, user_version: int) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something (x)")
        connection.execute(f"PRAGMA application_id = {application_id}")
        connection.execute(f"PRAGMA user_version = {user_version}")
    connection.close()
    return path.read_bytes()


@pytest.mark.parametrize("how", [{}, {"read_only": True}, {"read_only": True, "create": True}])
def test_a_missing_file_is_named(tmp_path: Path, how: dict[str, bool]) -> None:
    assert "no such database" in refusal(tmp_path / "none.db", **how)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "folder does not exist" in refusal(tmp_path / "none" / "bench.db", create=True)


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert "is a folder, expected a regular file" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"operator,time\n", b"SQLite format 3\x00"])
def test_other_files_are_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert "not a SQLite database" in refusal(path, create=True)
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused_untouched(path: Path) -> None:
    before = sqlite_file(path, application_id=7, user_version=1)
    assert "found application_id 0x7, expected 0x4b434442" in refusal(path, create=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", [{}, {"create": True}, {"read_only": True}])
def test_a_newer_version_is_refused_untouched(path: Path, how: dict[str, bool]) -> None:
    before = sqlite_file(path, application_id=APPLICATION_ID, user_version=99)
    assert f"schema version 99, this kernelcast reads versions up to {SCHEMA_VERSION}" in refusal(path, **how)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_version_that_never_was_is_refused(path: Path) -> None:
    sqlite_file(path, application_id=APPLICATION_ID, user_version=0)
    assert f"schema version 0, expected {OLDEST_VERSION} to {SCHEMA_VERSION}" in refusal(path)


def test_a_database_without_our_tables_is_refused(path: Path) -> None:
    sqlite_file(path, application_id=APPLICATION_ID, user_version=OLDEST_VERSION)
    message = refusal(path)
    assert "table 'something' is not kernelcast's" in message
    assert "nothing was read from it" in message


def test_a_truncated_database_is_one_line(database: Database, path: Path) -> None:
    database.close()
    path.write_bytes(path.read_bytes()[:5000])
    assert "damaged" in refusal(path)


def test_creating_leaves_one_file_and_opening_keeps_it(path: Path) -> None:
    with Database.open(path, create=True) as database:
        assert database.query("PRAGMA journal_mode") == [{"journal_mode": "wal"}]
        assert database.query("PRAGMA foreign_keys") == [{"foreign_keys": 1}]
        assert database.query("PRAGMA trusted_schema") == [{"trusted_schema": 0}]
    assert os.listdir(path.parent) == [path.name]
    before = path.read_bytes()
    with Database.open(path, create=True):
        pass
    assert path.read_bytes() == before


def test_creating_needs_no_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError("hard links are not supported")

    monkeypatch.setattr(os, "link", refuse)
    with Database.open(path, create=True) as database:
        assert database.run_list() == []
    assert os.listdir(path.parent) == [path.name]


def test_a_failed_creation_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = path.with_name("broken.sql")
    broken.write_text("CREATE TABLE half (x) STRICT;")
    monkeypatch.setattr("kernelcast.store.schema.SCHEMA_PATH", broken)
    assert "half.x" in refusal(path, create=True)
    assert os.listdir(path.parent) == [broken.name]


def test_paths_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "a ?mode=memory&b#c%20µ.db"
    with Database.open(path, create=True):
        assert path.exists()
    with Database.open(str(path), read_only=True) as database:
        assert database.hardware_list() == []


def test_reading_only_writes_nothing(
    database: Database,
    path: Path,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    database.close()
    before = path.read_bytes()
    with Database.open(path, read_only=True) as reader:
        assert len(reader.run_list()) == 1
        with pytest.raises(DataError, match="read-only"):
            reader.add_run(run, compute, fabric, software)
    assert path.read_bytes() == before


READ_IN_A_LOCKED_FOLDER = """
import os, sys
from kernelcast.store import Database
if os.geteuid() == 0:
    os.setuid(65534)  # root may write anywhere
with Database.open(sys.argv[1], read_only=True) as database:
    print(len(database.run_list()))
"""


def test_a_database_in_a_folder_without_write_permission_can_be_read(database: Database, path: Path) -> None:
    database.close()
    # Not below pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, folder)
        Path(folder).chmod(0o555)
        found = subprocess.run(
            [sys.executable, "-c", READ_IN_A_LOCKED_FOLDER, copy], capture_output=True, text=True, check=False
        )
        Path(folder).chmod(0o755)
    assert found.stdout.strip() == "1", found.stderr


def test_wrong_sql_is_one_line(database: Database) -> None:
    for sql in ("SELECT * FROM nothing", "SELEC", "DELETE FROM sample"):
        with pytest.raises(DataError, match=r"bench\.db"):
            database.query(sql)
    assert database.query("SELECT :x AS x", {"x": "'; --"}) == [{"x": "'; --"}]


def test_a_closed_database_says_so(database: Database) -> None:
    database.close()
    with pytest.raises(DataError, match="closed"):
        database.read_samples()


def test_what_strangers_files_may_ask_for(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until their schema is compared with ours, and afterwards."""
    names = ("LENGTH", "SQL_LENGTH", "COLUMN", "EXPR_DEPTH", "ATTACHED", "WORKER_THREADS")
    settings = ("trusted_schema", "cell_size_check", "foreign_keys", "busy_timeout")
    compare, steps = opening._compare_schema, opening._Steps
    limits: list[list[int]] = []
    counted: list[tuple[float, ...]] = []

    def noted(connection: sqlite3.Connection) -> None:
        found = [connection.getlimit(getattr(sqlite3, f"SQLITE_LIMIT_{name}")) for name in names]
        limits.append(found + [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings])

    def compared(file: Path, connection: sqlite3.Connection) -> int:
        noted(connection)
        return compare(file, connection)

    def counting(*most: float) -> object:
        counted.append(most)
        return steps(*most)

    monkeypatch.setattr(opening, "_compare_schema", compared)
    monkeypatch.setattr(opening, "_Steps", counting)
    with opening.foreign_database(path) as connection:
        noted(connection)
        assert connection.execute("PRAGMA query_only").fetchone() == (1,)
    usual = [0, 1, 1, 60_000]
    assert limits == [
        [16_384, 16_384, 100, 50, 0, 0, *usual],
        [64 << 20, 1_000_000, 2000, 1000, 0, 0, *usual],
    ]
    assert counted == [(10_000_000 + 100 * path.stat().st_size,), (20_000, 5.0), (float("inf"),)]
