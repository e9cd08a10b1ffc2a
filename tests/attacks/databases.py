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
from kernelcast.store.schema import OLDEST_VERSION, SCHEMA_VERSION

OLD_SCHEMAS = Path(__file__).parents[1] / "store" / "schemas"
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
    "2999-01-01T00:00:00.000Z",
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


def damaged_log(path: Path, generator: random.Random) -> str:
    """Give the database a -wal file of three transactions, and flip a bit of it."""
    writer = path.with_name("writer.db")
    path.rename(writer)
    with closing(sqlite3.connect(writer, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for number in range(3):
            connection.execute("UPDATE operator SET title = ?", (f"title {number}",))
        shutil.copy(writer, path)
        content = bytearray(writer.with_name("writer.db-wal").read_bytes())
    place = generator.randrange(len(content))
    content[place] ^= 1 << generator.randrange(8)
    path.with_name(path.name + "-wal").write_bytes(content)
    return f"byte {place} of the log"


def interrupted(path: Path, generator: random.Random) -> str:
    """Give the database the journal of an interrupted transaction, and change a byte of it."""
    writer = path.with_name("writer.db")
    path.rename(writer)
    with closing(sqlite3.connect(writer, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = DELETE; PRAGMA cache_size = 1; BEGIN; DELETE FROM kernel"
        )
        shutil.copy(writer, path)
        content = bytearray(writer.with_name("writer.db-journal").read_bytes())
    place = generator.randrange(len(content))
    content[place] = generator.randrange(256)
    path.with_name(path.name + "-journal").write_bytes(content)
    return f"byte {place} of the journal"


def endless_pages(path: Path, table: str) -> None:
    """Put six levels of pages above a table's first leaf; a page leads to the next one as often as it can."""
    with closing(sqlite3.connect(path)) as connection:
        [root] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    leaf = root
    while content[(start := (leaf - 1) * size)] == 5:  # a page of children
        leaf = int.from_bytes(content[start + 8 : start + 12], "big")
    pages = len(content) // size
    levels = [root, *range(pages + 1, pages + 6)]
    assert leaf != root
    cells = (size - 12) // 7
    for page, child in zip(levels, [*levels[1:], leaf], strict=True):
        head = bytes([5, 0, 0, *cells.to_bytes(2, "big"), *(size - 5 * cells).to_bytes(2, "big"), 0])
        places = b"".join((size - 5 * (cell + 1)).to_bytes(2, "big") for cell in range(cells))
        body = (head + child.to_bytes(4, "big") + places).ljust(size - 5 * cells, b"\0")
        body += (child.to_bytes(4, "big") + b"\1") * cells
        content[(page - 1) * size : page * size] = body
    content[28:32] = (len(content) // size).to_bytes(4, "big")
    path.write_bytes(content)


def of_version(path: Path, version: int) -> None:
    """Write a database of an older version, with the rows of the file at `path`."""
    newer = path.with_name("newer.db")
    path.rename(newer)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        script = (OLD_SCHEMAS / f"version_{version}.sql").read_text(encoding="utf-8")
        connection.executescript(f"BEGIN;\n{script}\nCOMMIT;")
        connection.execute("ATTACH ? AS newer", (str(newer),))
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM newer.{table}")
    newer.unlink()


_SLOW = "instr(hex(zeroblob(30000000)), hex(zeroblob(15000000)) || '1')"


def _replaced(old: str, new: str, name: str) -> tuple[str, ...]:
    # Not ALTER or CREATE: they would compute it here.
    new = new.replace("'", "''")
    return (
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = replace(sql, '{old}', '{new}') WHERE name = '{name}'",
    )


def _added(index: str) -> tuple[str, ...]:
    quoted = f"CREATE INDEX i ON fabric {index}".replace("'", "''")
    return (
        "PRAGMA writable_schema = ON",
        f"INSERT INTO sqlite_master SELECT 'index', 'i', 'fabric', rootpage, '{quoted}' FROM sqlite_master"
        " WHERE name = 'run_by_date'",
    )


_GIGABYTES = ", ".join(f"x{number} TEXT AS (hex(zeroblob(33000000)))" for number in range(100))
_COMPUTED = {
    "column that computes for hours": _replaced("\n) STRICT", f"\n, x INT AS ({_SLOW})) STRICT", "run"),
    "columns of gigabytes": _replaced("\n) STRICT", f"\n, {_GIGABYTES}) STRICT", "run"),
    "computed index": _added(f"(backend, {_SLOW})"),
    "computed condition of an index": _added(f"(backend) WHERE {_SLOW}"),
    "computed check": _replaced("length(id) = 32", f"length(id) = 32 OR {_SLOW}", "hardware"),
    "index of ours that computes": _replaced("(started_at)", f"({_SLOW})", "run_by_date"),
}

HOSTILE_SCHEMAS: dict[str, tuple[str, ...]] = {
    **_COMPUTED,
    **{
        f"{name}, version {version}": sql
        for name, sql in _COMPUTED.items()
        for version in (OLDEST_VERSION, SCHEMA_VERSION - 1)
    },
    "statistics that compute": (
        "ANALYZE",
        *_replaced("(tbl,idx,stat)", f"(tbl, idx, x, stat AS ({_SLOW}))", "sqlite_stat1"),
    ),
    "space that is none": _replaced(" STRICT", "\x85STRICT", "run"),
    "other collation": _replaced("id TEXT PRIMARY KEY", "id TEXT COLLATE NOCASE PRIMARY KEY", "run"),
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
    """Change a database's schema, of one that was made with the version at the end of the name."""
    if (version := name.rpartition(", version ")[2]) != name:
        of_version(path, int(version))
    with closing(sqlite3.connect(path)) as connection:
        for statement in HOSTILE_SCHEMAS[name]:
            connection.execute(statement)
        connection.commit()
