"""`check_database`: every kind of damage is a finding of its own, and a sound file has none."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, MeasuredStep, Sample, check_database
from kernelcast.store.schema import OLDEST_VERSION, SCHEMA_VERSION

NOTHING_READ = "; expected exactly the tables and views of schema.sql, nothing was read from it"

SampleMaker = Callable[..., Sample]


@pytest.fixture
def sound(database: Database, make_sample: SampleMaker, step: MeasuredStep) -> Path:
    database.add_samples([make_sample(rows=rows) for rows in range(1, 130)])
    database.add(step)
    database.close()
    return database.path


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_sound_database_has_no_findings_and_stays_as_it_was(sound: Path) -> None:
    before = sound.read_bytes()
    assert check_database(sound) == []
    assert sound.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("PRAGMA application_id = 7", "application_id is 0x7, expected 0x4b434442"),
        ("PRAGMA user_version = 99", "schema version is 99, expected 4 to"),
        ("PRAGMA user_version = 0", "schema version is 0, expected 4 to"),
        ("CREATE TABLE theirs (x)", "schema: table 'theirs' is not kernelcast's"),
        ("CREATE VIEW theirs AS SELECT 1", "schema: view 'theirs' is not kernelcast's"),
        (
            "CREATE VIEW rank_time AS SELECT 1",
            "schema: view 'rank_time' is not kernelcast's",
        ),  # an older version's
        ("CREATE INDEX theirs ON run (plan)", "schema: index 'theirs' is not kernelcast's"),
        (
            "CREATE TRIGGER theirs AFTER INSERT ON run BEGIN DELETE FROM sample; END",
            "schema: trigger 'theirs' is not kernelcast's",
        ),
        ("CREATE VIRTUAL TABLE theirs USING fts5(x)", "schema: table 'theirs' is not kernelcast's"),
        ("DROP VIEW failure", "schema: view 'failure' is missing"),
        ("ALTER TABLE run ADD COLUMN mine TEXT", "schema: table 'run' is not as kernelcast defines it"),
        ("DELETE FROM hardware", "foreign key: 1 row(s) of run name a missing row of hardware"),
        ("UPDATE kernel SET stream = 8 WHERE sequence = 0", "content does not match its id, it gives "),
    ],
)
def test_a_finding_per_kind_of_damage(sound: Path, statement: str, finding: str) -> None:
    change(sound, statement)
    findings = check_database(sound)
    assert any(finding in found for found in findings)
    assert not [found for found in findings if "\n" in found or str(sound) in found]


def test_a_view_of_ours_that_says_something_else_is_found(sound: Path) -> None:
    change(sound, "DROP VIEW failure", "CREATE VIEW failure AS SELECT load_extension('evil')")
    assert check_database(sound) == [f"schema: view 'failure' is not as kernelcast defines it{NOTHING_READ}"]
    for how in ({}, {"read_only": True}):
        with pytest.raises(
            DataError, match=r"view 'failure' is not as kernelcast defines it; .* nothing was read"
        ):
            Database.open(sound, **how)


def test_an_index_of_ours_over_other_columns_is_found(sound: Path) -> None:
    change(sound, "DROP INDEX run_by_date", "CREATE INDEX run_by_date ON run (plan)")
    assert check_database(sound) == [
        f"schema: index 'run_by_date' is not as kernelcast defines it{NOTHING_READ}"
    ]


def test_a_trigger_does_not_run_in_a_migration(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(sound, "CREATE TRIGGER theirs AFTER UPDATE ON run BEGIN DELETE FROM sample; END")
    monkeypatch.setattr(
        "kernelcast.store.connection.migrate", lambda opened: opened.execute("UPDATE run SET plan = plan")
    )
    before = sound.read_bytes()
    with pytest.raises(DataError, match="trigger 'theirs'"):
        Database.open(sound)
    assert sound.read_bytes() == before


def test_statistics_of_the_query_planner_are_welcome(sound: Path) -> None:
    change(sound, "ANALYZE")
    assert check_database(sound) == []
    Database.open(sound).close()


def test_many_damaged_rows_are_counted(sound: Path) -> None:
    change(sound, "UPDATE sample SET dtype = 'int8'")
    findings = check_database(sound)
    assert len(findings) == 101
    assert findings[-1] == "sample: 29 more such rows"


def test_what_sqlite_itself_finds_is_a_finding(sound: Path) -> None:
    # An index that does not know of a change of its table.
    with closing(sqlite3.connect(sound)) as connection:
        name, *index = connection.execute(
            "SELECT name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = 'sample_by_run'"
        ).fetchone()
    writable = "PRAGMA writable_schema = ON"
    change(sound, writable, f"DELETE FROM sqlite_master WHERE name = '{name}'")
    change(sound, "DELETE FROM sample WHERE number = 1")
    table, page, sql = index
    change(
        sound, writable, f"INSERT INTO sqlite_master VALUES ('index', '{name}', '{table}', {page}, '{sql}')"
    )
    findings = check_database(sound)
    assert findings
    assert all(finding.startswith("integrity: ") and name in finding for finding in findings)


def test_one_damaged_row_is_found_wherever_it_is(sound: Path) -> None:
    for end in ("min", "max"):
        copy = sound.with_name(f"{end}.db")
        shutil.copy(sound, copy)
        change(copy, f"UPDATE sample SET dtype = 'int8' WHERE id = (SELECT {end}(id) FROM sample)")
        [finding] = check_database(copy)
        assert finding.startswith("sample ")


def test_as_many_damaged_rows_as_are_listed(sound: Path) -> None:
    change(sound, "UPDATE sample SET dtype = 'int8' WHERE number <= 100")
    findings = check_database(sound)
    assert len(findings) == 100
    assert all(finding.startswith("sample ") for finding in findings)


def test_damaged_pages_are_findings(sound: Path) -> None:
    content = bytearray(sound.read_bytes())
    for page in range(60, len(content) // 4096, 7):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    sound.write_bytes(content)
    findings = check_database(sound)
    assert findings
    assert all("\n" not in finding for finding in findings)


@pytest.mark.parametrize("at", [100, 103, 105])
def test_a_damaged_schema_is_a_finding(sound: Path, at: int) -> None:
    content = bytearray(sound.read_bytes())
    content[at : at + 50] = b"\xff" * 50
    sound.write_bytes(content)
    assert check_database(sound)


def test_what_is_no_database_is_an_error(tmp_path: Path, sound: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("operator,time\n" * 100)
    with pytest.raises(DataError, match="not a SQLite database"):
        check_database(text)
    with pytest.raises(DataError, match="no such database"):
        check_database(tmp_path / "none.db")
    with pytest.raises(DataError, match=r"the limit is 0\.0001 GiB"):
        check_database(sound, max_size_bytes=2**30 // 10_000)


def test_a_text_of_gigabytes_is_refused(sound: Path) -> None:
    # zeroblob-like: SQLite can hold a text of 100 MB in a row; reading it is refused, not done.
    change(sound, "UPDATE sample SET reason = printf('%.*c', 70000000, 'x'), status = 'failed', time_us = NULL"
                  " WHERE number = 1")  # fmt: skip
    assert any("too big" in finding for finding in check_database(sound))


def test_a_copy_in_a_folder_without_write_permission(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    shutil.copy(sound, folder / "copy.db")
    folder.chmod(0o555)
    assert check_database(folder / "copy.db") == []
    folder.chmod(0o755)


@pytest.mark.parametrize("version", [OLDEST_VERSION, SCHEMA_VERSION - 1])
def test_an_older_version_has_to_be_one(sound: Path, version: int) -> None:
    change(sound, f"PRAGMA user_version = {version}")
    assert check_database(sound) == [
        f"schema version is {version}, expected {SCHEMA_VERSION}; open it once for writing to migrate it",
        f"schema: its tables and indexes differ from version {version}{NOTHING_READ}",
    ]


@pytest.mark.parametrize("version", [0, OLDEST_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_version_that_nobody_knows(sound: Path, version: int) -> None:
    change(sound, f"PRAGMA user_version = {version}")
    assert check_database(sound) == [
        f"schema version is {version}, expected {OLDEST_VERSION} to {SCHEMA_VERSION}"
    ]


def test_what_is_not_ours_is_counted_up_to_a_limit(sound: Path) -> None:
    with closing(sqlite3.connect(sound)) as connection:
        [ours] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    change(sound, *(f"CREATE VIEW theirs_{number} AS SELECT 1" for number in range(1000 - ours)))
    first = "schema: view 'theirs_0' is not kernelcast's"
    assert check_database(sound) == [f"{first} ({999 - ours} more differences){NOTHING_READ}"]
    change(sound, "CREATE VIEW one_more AS SELECT 1")
    more = f"schema: more than 1000 tables, indexes and views, expected {ours}"
    assert check_database(sound) == [more + NOTHING_READ]


def test_missing_rows_are_counted_per_pair_of_tables(sound: Path) -> None:
    change(sound, "DELETE FROM hardware", "DELETE FROM software", "DELETE FROM run")
    counted = [finding for finding in check_database(sound) if finding.startswith("foreign key: ")]
    # 129 samples and a step of one run.
    assert "foreign key: 129 row(s) of sample name a missing row of run" in counted
    assert "foreign key: 1 row(s) of step name a missing row of run" in counted
    assert counted == sorted(counted, key=lambda line: line.split(" of ")[1:])


def test_other_constraints_of_a_table_are_found(sound: Path) -> None:
    # Other CHECK constraints of the same columns: what a merge would refuse, or let through.
    with closing(sqlite3.connect(sound)) as connection:
        [[sql]] = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'sample'")
    for found, other in (("CHECK (", "CHECK ((1) AND "), ("CHECK (", "CHECK (1 OR ")):
        copy = sound.with_name(f"{len(other)}.db")
        shutil.copy(sound, copy)
        changed = sql.replace(found, other, 1).replace("'", "''")
        changed += ")" * (changed.count("(") - changed.count(")"))
        change(
            copy,
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_master SET sql = '{changed}' WHERE name = 'sample'",
        )
        finding = f"schema: table 'sample' is not as kernelcast defines it{NOTHING_READ}"
        assert check_database(copy) == [finding], changed
