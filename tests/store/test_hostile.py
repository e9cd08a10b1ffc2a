"""Databases of strangers: damaged rows, hostile schemas, what killed and failed runs leave behind."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, Run, Sample, check_database
from kernelcast.store.connection import foreign_database
from tests.attacks.databases import DEEP, HOSTILE_SCHEMAS, endless_pages, hostile_schema, readers
from tests.attacks.run import Counts, guarded

SMALL = Path(__file__).parent.parent / "data" / "small.db"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    return Path(shutil.copy(SMALL, folder / "small.db"))


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            connection.execute(statement)


_ROWS = {
    "null fingerprint": "UPDATE hardware SET fingerprint = 'null'",
    "list of a fingerprint": "UPDATE software SET fingerprint = '[]'",
    "deep fingerprint": f"UPDATE fabric SET fingerprint = '{{\"links\":{DEEP}}}'",
    "deep conditions": f"UPDATE run SET conditions = '{{\"a\":{DEEP}}}'",
    "deep vector": f"UPDATE sample SET vector = '{DEEP}'",
    "null vector": "UPDATE sample SET vector = 'null'",
    "null model": "UPDATE step SET model = 'null'",
    "deep components": f"UPDATE prediction SET components_s = '{{\"a\":{DEEP}}}'",
    "run of no source": "UPDATE source SET id = substr(id, 2) || '0'",
    "id of two lines": "UPDATE sample SET id = char(10) || substr(id, 2)",
    "id of a run of two lines": "UPDATE run SET id = char(10) || substr(id, 2)",
    "id of hardware of two lines": "UPDATE hardware SET id = char(10) || substr(id, 2)",
    "operator of two lines": "UPDATE sample SET operator = 'ge' || char(10) || 'lu'",
    "dtype of two lines": "UPDATE sample SET dtype = 'a' || char(10) || 'b'",
    "unknown direction": "UPDATE sample SET direction = 'sideways'",
}


@pytest.mark.parametrize("name", _ROWS)
def test_damaged_rows_are_one_line_of_every_reader(small: Path, tmp_path: Path, name: str) -> None:
    change(small, _ROWS[name])
    assert check_database(small)
    said = []
    for read in readers(small, SMALL, tmp_path).values():
        try:
            read()
        except DataError as error:
            said.append(str(error))
    assert all(line.isprintable() for line in said), said


@pytest.mark.parametrize("table", ["run", "sample", "hardware"])
def test_ids_that_are_numbers_are_one_line_of_every_reader(small: Path, tmp_path: Path, table: str) -> None:
    # A page in place of another one: what the schema calls a text is a number in the file.
    retyped = (
        "UPDATE sqlite_master SET sql = replace(sql, 'id {} PRIMARY', 'id {} PRIMARY') WHERE name = '{}'"
    )
    writable = "PRAGMA writable_schema = ON"
    change(small, writable, retyped.format("TEXT", "ANY", table))
    change(small, f"UPDATE {table} SET id = rowid")
    change(small, writable, retyped.format("ANY", "TEXT", table))
    assert check_database(small)
    said = {}
    for name, read in readers(small, SMALL, tmp_path).items():
        try:
            read()
        except DataError as error:
            said[name] = str(error)
    assert "merge" in said
    assert all(line.isprintable() for line in said.values()), said


@pytest.mark.parametrize("name", ["deep fingerprint", "deep conditions", "deep vector"])
@pytest.mark.parametrize("reader", ["merge", "export"])
def test_what_is_nested_deeply_is_refused(small: Path, tmp_path: Path, name: str, reader: str) -> None:
    change(small, _ROWS[name])
    with pytest.raises(DataError):
        readers(small, SMALL, tmp_path)[reader]()


@pytest.mark.parametrize("name", HOSTILE_SCHEMAS)
def test_hostile_schemas_are_found_and_refused(small: Path, tmp_path: Path, name: str) -> None:
    hostile_schema(small, name)
    counts = Counts()
    guarded("check", lambda: check_database(small) == [] and 1 / 0, counts)  # of limited time and memory
    assert counts.through == []
    guarded("merge", readers(small, SMALL, tmp_path)["merge"], counts)
    assert (counts.through, counts.refused) == ([], 1)
    for reader in ("export", "diff", "query", "row_counts"):
        guarded(reader, readers(small, SMALL, tmp_path)[reader], counts)
    assert counts.through == []


def test_check_says_what_a_merge_refuses(small: Path) -> None:
    hostile_schema(small, "operator reworded")
    [finding] = [one for one in check_database(small) if one.startswith("operator ")]
    assert finding.startswith('operator gelu: features are \'{"x":"y"}\', expected \'{')


def test_tens_of_thousands_of_views_are_one_line(small: Path) -> None:
    hostile_schema(small, "20,000 views")
    with pytest.raises(DataError, match=r"reading the schema takes more than 20,000 steps or 5 s; expected"):
        Database.open(small, read_only=True)


def test_pages_that_lead_to_each_other_are_not_read_forever(small: Path) -> None:
    endless_pages(small, "sample")
    assert any(finding.startswith("integrity: ") for finding in check_database(small))
    with (
        pytest.raises(DataError, match="takes more steps than its pages can need"),
        foreign_database(small) as connection,
    ):
        connection.execute("SELECT sum(length(reason)) FROM sample")


def test_the_next_run_removes_what_a_killed_one_left(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.db"
    code = (
        "import os, signal, sys; from pathlib import Path; from kernelcast.store.database_file import unfinished_file\n"
        "import sqlite3\n"
        f"with unfinished_file(Path({str(target)!r})) as new:\n"
        "    log = sqlite3.connect(new); log.execute('CREATE TABLE x (y)'); log.commit()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    strays = [path.name for path in tmp_path.iterdir() if path.name.startswith(".out.db.")]
    assert len(strays) == 3
    others = [tmp_path / f".out.db.{'0' * 8}-1-{'0' * 8}.new", tmp_path / ".out.db.new"]
    running = tmp_path / strays[0].replace(f"-{strays[0].split('-')[1]}-", f"-{os.getpid()}-")
    for path in (*others, running):
        path.touch()
    readers(small, SMALL, tmp_path)["export"]()  # another target
    assert {path.name for path in tmp_path.iterdir()} >= set(strays)
    subprocess.run(
        [sys.executable, "-m", "kernelcast.cli.main", "db", "export", str(small), str(target)], check=True
    )
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(".out.db")}
    assert left == {path.name for path in (*others, running)}


def test_what_was_given_up_does_not_stay_in_the_log(
    database: Database, run: Run, make_sample: Callable[..., Sample]
) -> None:
    def samples() -> object:
        for rows in range(1, 200):
            yield make_sample(rows=rows, kernels=200)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.add_samples(samples())  # type: ignore[arg-type]
    log = database.path.with_name(database.path.name + "-wal")
    assert not log.exists() or log.stat().st_size < 2**16
    assert database.row_counts()["sample"] == 0
