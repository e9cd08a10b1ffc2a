"""Interrupted transactions (-journal files) and logs without their database: nothing half-written is read as whole."""

import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, check_database, merge_databases
from kernelcast.store.export import Subset, export_database

SMALL = Path(__file__).parent.parent / "data" / "small.db"
MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A database as a killed program leaves it that deleted half of the kernels, with its journal."""
    written = shutil.copy(SMALL, tmp_path / "written.db")
    with closing(sqlite3.connect(written, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("DELETE FROM kernel WHERE sequence % 2")
        for end in ("", "-journal"):
            shutil.copy(f"{written}{end}", tmp_path / f"left.db{end}")
    return tmp_path / "left.db"


def kernels(path: Path) -> int:
    with Database.open(path, read_only=True) as database:
        [row] = database.query("SELECT count(*) AS n FROM kernel")
    return int(row["n"])


def test_half_written_pages_are_not_read_and_writing_undoes_them(interrupted: Path, tmp_path: Path) -> None:
    said = r"left\.db: a transaction was interrupted \(left\.db-journal\)"
    before = [path.read_bytes() for path in sorted(tmp_path.glob("left.db*"))]
    with pytest.raises(DataError, match=said):
        Database.open(interrupted, read_only=True)
    with pytest.raises(DataError, match=said):
        merge_databases([interrupted], tmp_path / "new.db")
    with pytest.raises(DataError, match=said):
        export_database(interrupted, tmp_path / "new.db", Subset())
    assert [path.read_bytes() for path in sorted(tmp_path.glob("left.db*"))] == before
    link = tmp_path / "link.db"
    link.symlink_to(interrupted)
    with pytest.raises(DataError, match=said.replace("left", "link", 1)):
        Database.open(link, read_only=True)
    Database.open(interrupted).close()
    assert check_database(interrupted) == []
    assert kernels(interrupted) == kernels(SMALL)


@pytest.mark.parametrize("kept", [b"", bytes(4096)])
def test_a_finished_journal_that_is_kept_is_no_transaction(kept: bytes, tmp_path: Path) -> None:
    path = Path(shutil.copy(SMALL, tmp_path / "kept.db"))
    (tmp_path / "kept.db-journal").write_bytes(kept)
    assert check_database(path) == []
    Database.open(path).close()


def test_a_journal_that_names_another_file_deletes_nothing(interrupted: Path, tmp_path: Path) -> None:
    victim = tmp_path / "mine.txt"
    victim.write_text("mine")
    journal = interrupted.with_name("left.db-journal")
    name = str(victim).encode()
    with journal.open("r+b") as file:
        page_bytes = struct.unpack_from(">I", file.read(28), 24)[0]
        file.seek(0, 2)
        file.write(struct.pack(">I", 2**30 // page_bytes + 1) + name)
        file.write(struct.pack(">II", len(name), sum(name)) + MAGIC)
    with pytest.raises(DataError, match=r"left\.db: its journal left\.db-journal names another file"):
        Database.open(interrupted)
    assert victim.read_text() == "mine"
    sqlite3.connect(interrupted).execute("SELECT count(*) FROM kernel").fetchall()
    assert not victim.exists()  # what SQLite does with such a journal


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_a_log_without_its_database_is_not_written_over_a_new_one(end: str, tmp_path: Path) -> None:
    path, log = tmp_path / "new.db", tmp_path / f"new.db{end}"
    log.write_bytes(b"earlier")
    for create in (
        lambda new: Database.open(new, create=True),
        lambda new: merge_databases([SMALL], new),
        lambda new: export_database(SMALL, new, Subset()),
    ):
        with pytest.raises(
            DataError, match=rf"new\.db: cannot be created next to new\.db{end} of an earlier database"
        ):
            create(path)
    assert {one.name for one in tmp_path.iterdir()} == {log.name}
    assert log.read_bytes() == b"earlier"
    log.unlink()
    Database.open(path, create=True).close()
    assert check_database(path) == []
