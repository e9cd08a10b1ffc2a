"""Migrations: old databases end with the schema that new ones begin with, or stay as they were."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, check_database, merge_databases
from kernelcast.store.querying import answer
from kernelcast.store.schema import (
    MIGRATIONS,
    OLDEST_VERSION,
    SCHEMA_PATH,
    SCHEMA_VERSION,
    Upgrade,
    migrate,
    schema_version,
)
from tests.attacks.databases import OLD_SCHEMAS, of_version

SMALL = Path(__file__).parents[1] / "data" / "small.db"


def statements(*sql: str) -> Upgrade:
    def upgrade(connection: sqlite3.Connection) -> None:
        for statement in sql:
            connection.execute(statement)

    return upgrade


NEXT = SCHEMA_VERSION + 1
ADD_COLUMN = {
    NEXT: statements(
        "ALTER TABLE run ADD COLUMN weather TEXT", "CREATE INDEX run_by_weather ON run (weather)"
    )
}
FAILS_HALFWAY = {NEXT + 1: statements("CREATE TABLE half (x TEXT) STRICT", "CREATE TABLE half (x TEXT)")}
LEAVES_DANGLING_ROWS = {NEXT: statements("DELETE FROM hardware")}


def schema_of(connection: sqlite3.Connection) -> dict[str, object]:
    """Tables with their columns, keys and indexes, and views, without comments and spacing."""
    found: dict[str, object] = {}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        if kind == "table":
            found[name] = [
                connection.execute(f"SELECT * FROM {pragma}('{name}')").fetchall()
                for pragma in ("pragma_table_xinfo", "pragma_foreign_key_list")
            ]
        elif kind == "index":
            found[name] = connection.execute(f"SELECT * FROM pragma_index_xinfo('{name}')").fetchall()
        else:
            lines = (line.partition("--")[0] for line in sql.splitlines())
            found[name] = " ".join(" ".join(lines).split())
    return found


@pytest.fixture
def connection(database: Database) -> sqlite3.Connection:
    return database.connection


def test_migrations_end_with_the_version_of_new_databases() -> None:
    assert list(MIGRATIONS) == list(range(min(MIGRATIONS), SCHEMA_VERSION + 1))
    assert f"PRAGMA user_version = {SCHEMA_VERSION};" in SCHEMA_PATH.read_text(encoding="utf-8")


def test_every_old_version_migrated_equals_a_fresh_database(connection: sqlite3.Connection) -> None:
    # A new version leaves the schema.sql before it in schemas/version_N.sql.
    for version in range(OLDEST_VERSION, SCHEMA_VERSION):
        old = sqlite3.connect(":memory:", isolation_level=None)
        old.executescript((OLD_SCHEMAS / f"version_{version}.sql").read_text(encoding="utf-8"))
        assert schema_version(old) == version
        migrate(old)
        assert schema_version(old) == SCHEMA_VERSION
        assert schema_of(old) == schema_of(connection)
        old.close()


@pytest.mark.parametrize("version", range(OLDEST_VERSION, SCHEMA_VERSION))
def test_an_old_database_keeps_its_content(tmp_path: Path, version: int) -> None:
    old = tmp_path / "old.db"
    of_version(Path(shutil.copy(SMALL, old)), version)
    before = old.read_bytes()
    assert check_database(old) == [
        f"schema version is {version}, expected {SCHEMA_VERSION}; open it once for writing to migrate it"
    ]
    merged = merge_databases([old], tmp_path / "merged.db")
    assert old.read_bytes() == before
    with Database.open(old) as database, Database.open(SMALL, read_only=True) as small:
        assert database.content_digest() == merged.content_digest
        counts, expected = database.row_counts(), small.row_counts()
        lacks = {table for table, count in expected.items() if count and not counts[table]}
        assert lacks == ({"timeline", "traced_step", "traced_event"} & lacks if version == 4 else set())
        assert counts["sample"] > 0
    assert check_database(old) == []


@pytest.mark.parametrize("version", range(OLDEST_VERSION, SCHEMA_VERSION))
def test_an_old_database_reads_as_what_it_is_migrated_to(tmp_path: Path, version: int) -> None:
    old = tmp_path / "old.db"
    of_version(Path(shutil.copy(SMALL, old)), version)
    with closing(sqlite3.connect(old)) as connection:
        # Columns are added to this table alone, which small.db has no rows of.
        columns = connection.execute("SELECT name, type FROM pragma_table_info('event_kind')").fetchall()
        if columns:
            values = {name: "a" if kind == "TEXT" else 1 for name, kind in columns}
            values |= {"id": "a" * 32, "class": "memory"}
            marks = ", ".join(f":{name}" for name in values)
            connection.execute(f"INSERT INTO event_kind ({', '.join(values)}) VALUES ({marks})", values)
            connection.commit()
    asked = [f"SELECT * FROM {name}" for name in ("sample", "event_kind", "stream_wait")]

    def rows() -> list[object]:
        found = list[object]()
        for sql in asked:
            with answer(old, sql) as answered:
                places = sorted(range(len(answered.columns)), key=lambda place: answered.columns[place])
                found.append(
                    [
                        sorted(answered.columns),
                        *sorted(repr([row[one] for one in places]) for row in answered.rows),
                    ]
                )
        return found

    before = rows()
    Database.open(old).close()
    assert rows() == before


def test_a_migration_is_applied_once(connection: sqlite3.Connection) -> None:
    migrate(connection, ADD_COLUMN)
    migrate(connection, ADD_COLUMN)
    assert schema_version(connection) == NEXT
    assert connection.execute("SELECT weather FROM run").fetchall() == [(None,)]
    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_migration_that_fails_leaves_the_version_before_it(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(connection, FAILS_HALFWAY | ADD_COLUMN)
    assert schema_version(connection) == NEXT
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    assert not connection.in_transaction


def test_a_migration_may_not_leave_rows_that_point_to_nothing(connection: sqlite3.Connection) -> None:
    before = schema_of(connection)
    with pytest.raises(DataError, match=f"version {NEXT}: run has dangling rows"):
        migrate(connection, LEAVES_DANGLING_ROWS)
    assert schema_version(connection) == SCHEMA_VERSION
    assert schema_of(connection) == before
    assert connection.execute("SELECT count(*) FROM hardware").fetchone() == (1,)


def test_opening_migrates_unless_read_only(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.close()
    for module in ("connection", "database_file"):
        monkeypatch.setattr(f"kernelcast.store.{module}.SCHEMA_VERSION", NEXT)
    monkeypatch.setattr("kernelcast.store.connection.schema_differences", lambda *_: [])
    monkeypatch.setattr("kernelcast.store.connection.migrate", lambda opened: migrate(opened, ADD_COLUMN))
    with pytest.raises(DataError, match="open it once for writing"):
        Database.open(database.path, read_only=True)
    with Database.open(database.path) as migrated:
        assert schema_version(migrated.connection) == NEXT
    with Database.open(database.path, read_only=True) as reader:
        assert len(reader.run_list()) == 1


KILLED = """
import os, signal, sqlite3, sys
from kernelcast.store.schema import migrate
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 10")  # what the migration writes reaches the disk at once
def upgrade(connection):
    connection.execute("ALTER TABLE run ADD COLUMN weather TEXT")
    connection.execute("CREATE TABLE much (x TEXT) STRICT")
    connection.execute(
        "INSERT INTO much WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
        " SELECT 'row ' || i FROM n"
    )
    os.kill(os.getpid(), signal.SIGKILL)
migrate(connection, {int(sys.argv[2]): upgrade})
"""


def test_a_killed_migration_leaves_the_old_version_whole(database: Database) -> None:
    before = schema_of(database.connection)
    database.close()
    size = database.path.stat().st_size
    done = subprocess.run([sys.executable, "-c", KILLED, str(database.path), str(NEXT)], check=False)
    assert done.returncode == -signal.SIGKILL
    written = database.path.with_name(database.path.name + "-wal").stat().st_size
    assert written > 5 * size
    assert check_database(database.path) == []
    with Database.open(database.path) as reopened:
        assert schema_version(reopened.connection) == SCHEMA_VERSION
        assert schema_of(reopened.connection) == before
        assert len(reopened.run_list()) == 1
