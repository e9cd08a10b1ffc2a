"""Databases that are damaged or made to do harm, given to everything that reads one."""

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from kernelcast.store import Database, IngestedTrace, MeasuredStep, Prediction, PredictorRecord
from kernelcast.store.check import check_database
from kernelcast.store.copying import merge_databases
from kernelcast.store.difference import diff_databases
from kernelcast.store.doubts import doubtful_samples
from kernelcast.store.export import Subset, export_database
from kernelcast.store.parquet import export_parquet
from kernelcast.store.querying import answer

DEEP = "[" * 999 + "]" * 999
VALUES = (
    "null",
    "[]",
    "{}",
    "1",
    "",
    "not JSON",
    "[null]",
    '{"a":null}',
    DEEP,
    f'{{"model":{DEEP}}}',
    "1e999",
    "9" * 5000,
    "\x00",
    b"\xff\xfe",
    -(2**63),
    9e999,
    None,
)


def readers(path: Path, sound: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """Every function that reads a database from elsewhere."""

    def opened(read: Callable[[Database], Any]) -> Callable[[], object]:
        def run() -> None:
            with Database.open(path, read_only=True) as database:
                found = read(database)
                if isinstance(found, Iterator):
                    list(found)

        return run

    def into(name: str) -> Path:
        target = folder / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        return target

    def asked() -> None:
        with answer(path, "SELECT * FROM operator_time", time_limit_s=10) as found:
            list(found.rows)

    methods = ["samples_in_full", "content_digest", "row_counts", "read_samples", "run_list", "hardware_list"]
    methods += ["fabric_list", "software_list"]
    kinds = (MeasuredStep, IngestedTrace, Prediction, PredictorRecord)
    return {
        "check": lambda: check_database(path),
        "merge": lambda: merge_databases([path], into("merged.db")),
        "merge into it": lambda: merge_databases([sound], shutil.copy(path, folder / "into.db")),
        "export": lambda: export_database(path, into("export.db"), Subset()),
        "export a part": lambda: export_database(path, into("part.db"), Subset(operators=("gelu",))),
        "export Parquet": lambda: export_parquet(path, into("parquet"), Subset()),
        "diff": lambda: diff_databases(path, sound),
        "query": asked,
        "doubts": opened(doubtful_samples),
        **{name: opened(lambda database, name=name: getattr(database, name)()) for name in methods},
        **{kind.table: opened(lambda database, kind=kind: database.records(kind)) for kind in kinds},
    }


def changed_value(path: Path, generator: random.Random) -> str:
    """Change one value of one row, past all constraints that can be switched off; says which."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = [name for name in tables if connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]]
        table = generator.choice(tables)
        column = generator.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
        value = generator.choice(VALUES)
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        try:
            connection.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT max(rowid) FROM {table})", (value,)
            )
            connection.commit()
        except sqlite3.Error:
            connection.rollback()
    return f"{table}.{column} = {str(value)[:20]!r}"


def flipped_bytes(path: Path, generator: random.Random) -> str:
    """Flip bits of one to eight bytes behind the header."""
    content = bytearray(path.read_bytes())
    places = [generator.randrange(100, len(content)) for _ in range(generator.choice((1, 2, 8)))]
    for place in places:
        content[place] ^= 1 << generator.randrange(8)
    path.write_bytes(content)
    return f"bytes {places}"


def swapped_pages(path: Path, generator: random.Random) -> str:
    """Swap two pages, or write one over another."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    one, other = (size * generator.randrange(1, len(content) // size) for _ in range(2))
    page = bytes(content[one : one + size])
    if generator.random() < 0.5:
        content[one : one + size] = content[other : other + size]
    content[other : other + size] = page
    path.write_bytes(content)
    return f"pages {one // size} and {other // size}"


HOSTILE_SCHEMAS: dict[str, tuple[str, ...]] = {
    "trigger": ("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM sample; END",),
    "view that shadows": ("DROP VIEW coverage", "CREATE VIEW coverage AS SELECT 1"),
    "virtual table": ("CREATE VIRTUAL TABLE theirs USING fts5(x)",),
    "generated column": (
        "ALTER TABLE run ADD COLUMN x ANY GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL",
    ),
    "index on an expression": ("CREATE INDEX i ON sample (hex(zeroblob(1000000)))",),
    "20,000 views": (
        "PRAGMA writable_schema = ON",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        " INSERT INTO sqlite_master SELECT 'view', 'v' || i, 'v' || i, 0,"
        " 'CREATE VIEW v' || i || ' AS SELECT * FROM sample, kernel' FROM n",
    ),
    "checks removed": (
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, ' CHECK (length(id) = 32)', '') WHERE name = 'hardware'",
    ),
    "operator reworded": ("UPDATE operator SET features = '{\"x\":\"y\"}' WHERE name = 'gelu'",),
    "schema that is no SQL": (
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'nothing' WHERE name = 'sample'",
    ),
    "root page of another": (
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = 2 WHERE name = 'sample'",
    ),
    "newer version": ("PRAGMA user_version = 999999",),
    "negative version": ("PRAGMA user_version = -1",),
}


def hostile_schema(path: Path, name: str) -> None:
    """Change a database's schema."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in HOSTILE_SCHEMAS[name]:
            connection.execute(statement)
        connection.commit()
