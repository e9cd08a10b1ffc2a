"""Merging what is not sound: reported in one line, and nothing is merged."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import (
    content_digest,
)
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store import (
    Database,
    IngestedTrace,
    MeasuredStep,
    Sample,
    check_database,
    merge_databases,
)
from kernelcast.store.canonical import record_digest
from kernelcast.store.records import sample_digest
from kernelcast.store.sample_rows import stored_samples

SampleMaker = Callable[..., Sample]
TraceAdder = Callable[..., IngestedTrace]


def files(folder: Path) -> dict[Path, bytes]:
    # SQLite leaves (empty) -wal and -shm files next to a database that was read without permission to write.
    return {path: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


def refused(sources: list[Path], into: Path) -> str:
    """The error of a merge that must leave everything as it was."""
    before = files(into.parent)
    with pytest.raises(DataError) as caught:
        merge_databases(sources, into)
    assert "\n" not in str(caught.value)
    assert files(into.parent) == before
    return str(caught.value)


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("UPDATE sample SET time_us = 1.0", "sample"),
        ("UPDATE repetition SET time_us = 1.0 WHERE repetition_index = 3", "sample"),
        ("UPDATE kernel SET duration_us = 9.0 WHERE sequence = 1", "sample"),
        ("UPDATE kernel_name SET name = 'x' || name", "sample"),
        ("DELETE FROM kernel WHERE repetition_index = 2 AND sequence = 0", "sample"),
        ("UPDATE sample SET vector = '[64, 512, 1536]'", "sample"),
        ("UPDATE sample_flag SET detail = 'nothing'", "sample"),
        ("DELETE FROM sample_flag", "sample"),
        ("UPDATE trace SET rank = 1", "trace"),
        ("UPDATE trace SET process_groups = '{}'", "trace"),
        ("UPDATE unrecognised_kernel SET kernel_count = 9", "unrecognised_kernel"),
        ("UPDATE hardware SET cores = 64", "hardware"),
        ("UPDATE software SET fingerprint = '{}'", "software"),
        ("UPDATE run SET plan = 'none'", "run"),
        ("UPDATE run SET conditions = 'none'", "run"),
        ("UPDATE run_note SET site = 'Other site'", "run_note"),
        ("UPDATE source SET licence = 'MIT'", "source"),
        ("UPDATE step SET min_s = 0.1", "step"),
        ("UPDATE step SET model = '[]'", "step"),
        ("UPDATE step SET model_name = 'other'", "step"),
    ],
)
def test_a_row_that_does_not_match_its_id_is_reported_and_nothing_merged(
    database: Database,
    make_sample: SampleMaker,
    step: MeasuredStep,
    add_trace: TraceAdder,
    other: Path,
    change: str,
    where: str,
) -> None:
    database.add_samples([replace(make_sample(), flags=(("unstable", "spread 31 %"),))])
    database.add(step)
    add_trace()
    database.close()
    sound = database.path.with_name("sound.db")
    shutil.copy(database.path, sound)
    tamper(database.path, change)
    assert f"bench.db: {where} " in refused([sound, database.path], other)
    assert f"bench.db: {where} " in refused([database.path], database.path.with_name("new.db"))
    [finding, *_] = check_database(database.path)
    assert finding.startswith(f"{where} ")
    # The same id with other content in the database that is merged into.
    assert "differs from the row of the same id" in refused([sound], database.path)


def forged(table: str, meaning: dict[str, object]) -> str:
    """The id that content gives, computed as a stranger might to get nonsense in."""
    return content_digest(meaning) if table == "hardware" else record_digest(table, meaning)


@pytest.mark.parametrize(
    ("where", "columns", "meaning"),
    [
        ("hardware", {"fingerprint": '{"kind":"cpu"}'}, {"kind": "cpu"}),
        ("hardware", {"fingerprint": "[]"}, []),
        ("run_note", {"run_id": "none", "site": "", "note": ""}, {"run_id": "none"}),
        ("source", {"licence": "x", "file_digest": "y"}, None),
    ],
)
def test_rows_that_could_not_be_read_later_are_refused_although_their_ids_match(
    database: Database, other: Path, where: str, columns: dict[str, str], meaning: dict[str, object] | None
) -> None:
    database.close()
    row = dict(columns) if meaning is None else {**columns, "id": forged(where, meaning)}
    changes = ", ".join(f"{name} = '{value}'" for name, value in row.items())
    tamper(database.path, f"UPDATE {where} SET {changes}")
    assert f"bench.db: {where}" in refused([database.path], other)


@pytest.mark.parametrize("vector", ['["a","b","c"]', "[1,2]", "[1,2,-3]", "{}", "[1,2,3.5]"])
def test_a_vector_that_makes_no_sense_is_refused_although_its_id_matches(
    database: Database, make_sample: SampleMaker, other: Path, vector: str
) -> None:
    database.add_samples([make_sample()])
    [stored] = stored_samples(database.connection)
    database.close()
    columns = {**stored.columns, "vector": json.loads(vector)}
    forged_id = sample_digest(columns, stored.repetitions, stored.flags)
    tamper(database.path, f"UPDATE sample SET vector = '{vector}', id = '{forged_id}'")
    assert "bench.db: sample " in refused([database.path], other)


def test_dangling_rows_are_refused(database: Database, other: Path) -> None:
    database.close()
    tamper(database.path, "DELETE FROM software")
    assert "bench.db: run: a row breaks the schema" in refused([database.path], other.with_name("new.db"))
    assert "foreign key: 1 row(s) of run name a missing row of software" in check_database(database.path)


def test_an_operator_with_other_features_is_refused(database: Database, other: Path) -> None:
    database.close()
    tamper(database.path, "UPDATE operator SET features = '{\"x\":\"\"}' WHERE name = 'gelu'")
    assert "bench.db: operator gelu" in refused([database.path], other)


def test_operators_of_other_versions_come_along(database: Database, other: Path) -> None:
    database.close()
    tamper(
        database.path,
        "INSERT INTO operator VALUES ('later', 'invented', 'compute-bound', '[\"forward\"]', '{}', '{}')",
    )
    merge_databases([database.path], other)
    with Database.open(other) as merged:
        assert merged.query("SELECT title FROM operator WHERE name = 'later'") == [{"title": "invented"}]


def test_what_is_missing_is_named_before_anything_is_made(database: Database, tmp_path: Path) -> None:
    assert "none.db: no such database" in refused([database.path, tmp_path / "none.db"], tmp_path / "new.db")
    with pytest.raises(UsageError, match="no database"):
        merge_databases([], tmp_path / "new.db")


def test_a_source_over_the_size_limit_is_refused(database: Database, other: Path) -> None:
    with pytest.raises(DataError, match=r"bench\.db: has .* GiB, the limit is 9.54e-06 GiB \(--max-size"):
        merge_databases([database.path], other, max_size_bytes=10_240)


def test_a_merge_while_another_process_appears_with_the_name(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(source: Path, target: Path) -> None:
        raise FileExistsError

    monkeypatch.setattr(os, "link", taken)
    assert "appeared while merging" in refused([database.path], tmp_path / "new.db")
