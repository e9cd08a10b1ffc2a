"""Verification of a database."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kernelcast.runtime.errors import DataError, shown
from kernelcast.store.connection import open_untrusted, snapshot
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, check_size, read_header
from kernelcast.store.migrations import APPLICATION_ID, OLDEST_VERSION, SCHEMA_VERSION
from kernelcast.store.rows import CONTENT_TABLES, FINGERPRINTS, Row, json_value, row_problem, rows
from kernelcast.store.sample_rows import sample_problem, stored_samples
from kernelcast.store.schema import schema_differences
from kernelcast.store.sqlite_errors import explanation, reported
from kernelcast.store.timelines import stored_timelines
from kernelcast.store.write import different_features

_MOST_OF_ONE_KIND = 100  # a damaged file must not print a line per row


def check_database(path: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> list[str]:
    """Findings, one line each; empty if the database is sound. The file is not written.

    Checks application_id and version, tables and views (exactly as in schema.sql), SQLite's integrity check, foreign
    keys, the features of operators, and every row's id against its content, repetitions and kernels included.

    Raises:
        DataError: no such file, not a SQLite database, or larger than `max_size_bytes`.
    """
    path = Path(path)
    header = read_header(path)
    check_size(path, max_size_bytes)
    if header.application_id != APPLICATION_ID:
        return [f"application_id is {header.application_id:#x}, expected {APPLICATION_ID:#x}"]
    findings: list[str] = []
    try:
        with reported(path), closing(open_untrusted(path, read_only=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            with snapshot(connection):
                findings += _version(header.user_version) or _schema(connection)
                findings += _integrity(connection)
                if not findings:  # rows of other tables cannot be verified
                    findings += _foreign_keys(connection)
                    findings += _operators(connection)
                    findings += _rows(connection)
    except DataError as error:
        findings.append(str(error).removeprefix(f"{path}: "))
    return findings


def _version(found: int) -> list[str]:
    if found == SCHEMA_VERSION:
        return []
    if found in range(OLDEST_VERSION, SCHEMA_VERSION):
        return [
            f"schema version is {found}, expected {SCHEMA_VERSION}; open it once for writing to migrate it"
        ]
    return [f"schema version is {found}, expected {OLDEST_VERSION} to {SCHEMA_VERSION}"]


def _integrity(connection: sqlite3.Connection) -> list[str]:
    rows = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_MOST_OF_ONE_KIND})")]
    return [] if rows == ["ok"] else [f"integrity: {' '.join(row.split())}" for row in rows]


def _schema(connection: sqlite3.Connection) -> list[str]:
    try:
        return [f"schema: {difference}" for difference in schema_differences(connection)]
    except sqlite3.Error as error:
        return [f"schema: {explanation(error)}"]


def _operators(connection: sqlite3.Connection) -> list[str]:
    """Operators whose features differ from this kernelcast's: a merge refuses them."""
    return [
        f"operator {name}: features are {shown(found)}, expected {shown(expected)}"
        for name, found, expected in different_features(connection)
    ]


def _foreign_keys(connection: sqlite3.Connection) -> list[str]:
    counts: dict[tuple[str, str], int] = {}
    for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        counts[table, parent] = counts.get((table, parent), 0) + 1
    return [
        f"foreign key: {count} row(s) of {table} name a missing row of {parent}"
        for (table, parent), count in sorted(counts.items())
    ]


def _rows(connection: sqlite3.Connection) -> list[str]:
    findings = []
    for table in CONTENT_TABLES:
        listed: list[str] = []
        more = 0
        for row_id, problem in _problems(connection, table):
            if problem is None:
                continue
            if len(listed) < _MOST_OF_ONE_KIND:
                listed.append(f"{table} {row_id}: {problem}")
            else:
                more += 1
        findings += [*listed, f"{table}: {more} more such rows"] if more else listed
    return findings


def _problems(connection: sqlite3.Connection, table: str) -> Iterator[tuple[str, str | None]]:
    """The id of every row, and its problem or None."""
    if table in FINGERPRINTS:
        return (
            (row["id"], row_problem(table, row) or _description_problem(table, row))
            for row in rows(connection, f"SELECT * FROM {table} ORDER BY id")
        )
    if table == "sample":
        return ((sample.id, sample_problem(sample)) for sample in stored_samples(connection))
    if table == "timeline":
        return ((timeline_id, problem) for timeline_id, _, problem in stored_timelines(connection))
    found = rows(connection, f"SELECT * FROM {table} ORDER BY id")
    return ((row["id"], row_problem(table, row)) for row in found)


def _description_problem(table: str, row: Row) -> str | None:
    """The description is not part of the id, and people read it: it has to be that of the fingerprint's fields."""
    expected = FINGERPRINTS[table].from_dict(json_value("fingerprint", row["fingerprint"])).description
    found = row["description"]
    return (
        None
        if found == expected
        else f"description is {shown(found)}, its fingerprint's is {shown(expected)}"
    )
