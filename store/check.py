"""Verification of a database."""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, shown
from kernelcast.store.connection import foreign_database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, check_size, read_header
from kernelcast.store.rows import CONTENT_TABLES, FINGERPRINTS, Row, json_value, row_problem, rows
from kernelcast.store.sample_rows import sample_problem, stored_samples
from kernelcast.store.schema import APPLICATION_ID, FROZEN, OLDEST_VERSION, SCHEMA_VERSION
from kernelcast.store.timelines import stored_timelines
from kernelcast.store.write import different_features

_MOST_OF_ONE_KIND = 100  # a damaged file must not print a line per row


def check_database(path: str | Path, *, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> list[str]:
    """Findings, one line each; empty if the database is sound. The file is not written.

    Checks application_id and version; the text of tables and views (exactly as in schema.sql), and goes on only where
    it is; the log; SQLite's integrity check, foreign keys, the features of operators, and every row's id against its
    content, repetitions and kernels included. DataError for a file that is missing, too large or no SQLite database.
    """
    path = Path(path)
    header = read_header(path)
    check_size(path, max_size_bytes)
    if header.application_id != APPLICATION_ID:
        return [f"application_id is {header.application_id:#x}, expected {APPLICATION_ID:#x}"]
    findings = _version(header.user_version)
    if findings and header.user_version not in FROZEN:
        return findings
    try:
        with foreign_database(path, max_size_bytes=max_size_bytes) as connection:
            found = _integrity(connection)
            if not found:  # rows of damaged tables cannot be verified
                found += _foreign_keys(connection)
                found += _operators(connection)
                found += _rows(connection)
            findings += found
    except DataError as error:
        findings.append(str(error).removeprefix(f"{path}: "))
    return findings


def _version(found: int) -> list[str]:
    if found == SCHEMA_VERSION:
        return []
    if found in FROZEN:
        return [
            f"schema version is {found}, expected {SCHEMA_VERSION}; open it once for writing to migrate it"
        ]
    return [f"schema version is {found}, expected {OLDEST_VERSION} to {SCHEMA_VERSION}"]


def _integrity(connection: sqlite3.Connection) -> list[str]:
    rows = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_MOST_OF_ONE_KIND})")]
    return [] if rows == ["ok"] else [f"integrity: {' '.join(row.split())}" for row in rows]


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
        for row_id, row, problem in checked_rows(connection, table):
            if problem is None and table in FINGERPRINTS:
                problem = _description_problem(table, row)
            if problem is None:
                continue
            if len(listed) < _MOST_OF_ONE_KIND:
                listed.append(f"{table} {row_id}: {problem}")
            else:
                more += 1
        findings += [*listed, f"{table}: {more} more such rows"] if more else listed
    return findings


def checked_rows(
    connection: sqlite3.Connection, table: str, where: str = "1", parameters: Sequence[Any] = ()
) -> Iterator[tuple[str, Any, str | None]]:
    """Id, content and problem (or None) of rows of a content table, one at a time; `where` is trusted SQL about it.

    The content is a `SampleRows`, a `Timeline`, or else the row.
    """
    if table == "sample":
        samples = stored_samples(connection, where, parameters)
        yield from ((sample.id, sample, sample_problem(sample)) for sample in samples)
    elif table == "timeline":
        yield from stored_timelines(connection, where, parameters)
    else:
        for row in rows(connection, f"SELECT * FROM {table} WHERE {where} ORDER BY id", parameters):
            yield row["id"], row, row_problem(table, row)


def _description_problem(table: str, row: Row) -> str | None:
    """The description is not part of the id, and people read it: it has to be that of the fingerprint's fields."""
    expected = FINGERPRINTS[table].from_dict(json_value("fingerprint", row["fingerprint"])).description
    found = row["description"]
    return (
        None
        if found == expected
        else f"description is {shown(found)}, its fingerprint's is {shown(expected)}"
    )
