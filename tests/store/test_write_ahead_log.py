"""Logs (-wal files): what SQLite drops without a word of a damaged one is said."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, check_database, merge_databases

SMALL = Path(__file__).parent.parent / "data" / "small.db"
FRAME_BYTES = 24 + 512
TIMES = 3


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(shutil.copy(SMALL, tmp_path / "w.db"), isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for number in range(TIMES):
            connection.execute("INSERT INTO operator VALUES (?, '', '', '[]', '{}', '{}')", (f"o{number}",))
        yield connection


def copied(folder: Path) -> tuple[Path, Path]:
    """A copy of the database and its log, as a killed process leaves them, without the shared index."""
    target = folder / "copy.db"
    shutil.copy(folder / "w.db", target)
    return target, Path(shutil.copy(folder / "w.db-wal", folder / "copy.db-wal"))


def test_a_sound_log_is_read(writer: sqlite3.Connection, tmp_path: Path) -> None:
    target, log = copied(tmp_path)
    assert log.stat().st_size > FRAME_BYTES * TIMES
    assert check_database(target) == []
    with Database.open(target, read_only=True) as database:
        [row] = database.query("SELECT count(*) AS n FROM operator WHERE name LIKE 'o_'")
    assert row["n"] == TIMES


@pytest.mark.parametrize(
    ("place", "frame"), [(5, 0), (25, 0), (32 + 20, 1), (32 + 24 + 500, 1), (32 + FRAME_BYTES + 9, 2)]
)
def test_transactions_behind_a_damaged_frame_are_said(
    writer: sqlite3.Connection, tmp_path: Path, place: int, frame: int
) -> None:
    target, log = copied(tmp_path)
    content = bytearray(log.read_bytes())
    content[place] ^= 1
    log.write_bytes(content)
    [finding] = check_database(target)
    assert finding.startswith(f"its log copy.db-wal is damaged at frame {frame} and transactions follow")
    with pytest.raises(DataError, match=f"damaged at frame {frame}"):
        merge_databases([target], tmp_path / "new.db")
    with pytest.raises(DataError, match=f"damaged at frame {frame}"):
        Database.open(target, read_only=True)
    Database.open(target).close()  # drops them, as SQLite does
    assert check_database(target) == []


def test_what_was_given_up_or_is_from_before_is_no_damage(writer: sqlite3.Connection, tmp_path: Path) -> None:
    writer.execute("PRAGMA cache_size = 5")  # what is given up below reaches the log
    writer.execute("BEGIN")
    writer.execute("INSERT INTO kernel_name (name) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                   " WHERE i < 20000) SELECT 'kernel ' || i FROM n")  # fmt: skip
    writer.execute("ROLLBACK")
    before = (tmp_path / "w.db-wal").stat().st_size
    assert before > 50 * FRAME_BYTES
    writer.execute("UPDATE operator SET title = 'x' WHERE name = 'o1'")
    assert check_database(copied(tmp_path)[0]) == []
    writer.execute("PRAGMA wal_checkpoint(RESTART)")
    writer.execute("UPDATE operator SET title = 'y' WHERE name = 'o1'")
    assert (tmp_path / "w.db-wal").stat().st_size >= before
    assert check_database(copied(tmp_path)[0]) == []


@pytest.mark.slow
def test_any_changed_bit_is_said_or_changes_nothing(writer: sqlite3.Connection, tmp_path: Path) -> None:
    target, log = copied(tmp_path)
    sound, generator = log.read_bytes(), random.Random(7)
    said = 0
    for _ in range(150):
        content = bytearray(sound)
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        log.write_bytes(content)
        target.with_name("copy.db-shm").unlink(missing_ok=True)
        try:
            with Database.open(target, read_only=True) as database:
                assert database.query("SELECT count(*) AS n FROM operator WHERE name LIKE 'o_'") == [
                    {"n": TIMES}
                ]
        except DataError:
            said += 1
    assert said > 100


def test_the_last_transaction_is_damage_too(writer: sqlite3.Connection, tmp_path: Path) -> None:
    target, log = copied(tmp_path)
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    frames = (len(content) - 32) // FRAME_BYTES
    assert f"damaged at frame {frames}" in check_database(target)[0]
