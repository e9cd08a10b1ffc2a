"""Every way in which `train_bundle` can fail: one line, and an existing output stays as it was."""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, UsageError, read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, PredictorRecord, Sample
from kernelcast.train import fit as training
from kernelcast.train import fit_table
from kernelcast.train.fit import open_measurements, train_bundle

Measure = Callable[..., list[Sample]]
FORWARD = Direction.FORWARD

pytestmark = pytest.mark.usefixtures("few_candidates")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "here.kcast"


def assert_untouched(output: Path, content: bytes | None = None) -> None:
    """Nothing written, neither the bundle nor a part of it."""
    assert (output.read_bytes() if output.exists() else None) == content
    assert not list(output.parent.glob(".*.new"))


def failing(
    database: Database, output: Path, error: type[Exception], message: str, **options: object
) -> None:
    """The training fails with one line, and leaves an existing output as it was."""
    before = output.read_bytes() if output.is_file() else None
    with pytest.raises(error, match=message) as caught:
        train_bundle(database, output, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    if output.parent.is_dir() and not output.is_dir():
        assert_untouched(output, before)
    assert database.records(PredictorRecord) == []


def test_nothing_usable_is_one_line(database: Database, measure: Measure, output: Path) -> None:
    failing(database, output, DataError, r"bench\.db: no sample with a time in it, expected some \(")
    for operator in ("gelu", "softmax", "swiglu", "rope", "embedding"):
        measure(database, operator, FORWARD, 7)
    failing(
        database,
        output,
        DataError,
        r"bench\.db: no operator has enough rows to train on "
        r"\(embedding \(forward\): 7 distinct workloads, expected 8 or more; gelu .*; 2 more\)$",
    )


def test_wrong_use_is_one_line(
    database: Database, measure: Measure, output: Path, compute: ComputeFingerprint
) -> None:
    measure(database, "gelu", FORWARD, 8)
    failing(
        database, output, UsageError, "^statistic is 'mean', expected quiet or middle_five$", statistic="mean"
    )
    for seed in (-1, 2**32):
        failing(database, output, UsageError, f"^seed is {seed}, expected 0 to 4294967295$", seed=seed)
    failing(database, output, UsageError, "^jobs is -1, expected 0 or more$", jobs=-1)
    failing(database, output, UsageError, "no hardware with a sample starts with 'zz'", hardware="zz")
    failing(database, output, UsageError, "dtype 'float64' was not measured", dtype="float64")
    measure(database, "gelu", FORWARD, 8, compute=replace(compute, cores=4))
    output.write_bytes(b"an earlier bundle")
    failing(database, output, UsageError, r"more than one hardware, choose one with --hardware-id: .*; ")


def test_rows_without_a_quiet_time_say_what_to_do(database: Database, measure: Measure, output: Path) -> None:
    measure(database, "gelu", FORWARD, 8, quiet=False)
    failing(
        database,
        output,
        DataError,
        "of gelu has no quiet time, expected one; train with --statistic middle_five",
        statistic="quiet",
    )
    trained = train_bundle(database, output)
    assert (trained.manifest.statistic, trained.without_quiet, trained.samples) == ("middle_five", 8, 8)


def never(*_: object) -> None:
    raise AssertionError("the long work began")


def test_an_output_that_cannot_be_written_is_seen_before_the_long_work(
    database: Database, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 8)
    monkeypatch.setattr(training, "fit_table", never)
    missing = tmp_path / "none" / "here.kcast"
    failing(database, missing, DataError, r"here\.kcast: cannot be written \(no folder .*none\)$")
    assert not missing.parent.exists()
    failing(database, tmp_path, DataError, r"cannot be written \(it is a folder\)$")
    file = tmp_path / "file"
    file.write_text("not a folder")
    failing(database, file / "here.kcast", DataError, r"cannot be written \(no folder .*file\)$")
    failing(database, Path("/proc/here.kcast"), DataError, r"^bundle /proc/here\.kcast: cannot be written \(")


@contextmanager
def nobody() -> Iterator[None]:
    """Root may write anywhere, so it becomes another user for a while."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_database_that_cannot_be_written_is_seen_before_the_long_work(
    database: Database, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 8)
    monkeypatch.setattr(training, "fit_table", never)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        path = folder / "theirs.db"
        vacuum_into(database, path)
        path.chmod(0o444)
        with nobody(), open_measurements(path) as measurements:
            output = folder / "here.kcast"
            failing(
                measurements,
                output,
                DataError,
                r"theirs\.db: cannot be written \(Permission denied\), expected",
            )
            assert not output.exists()


def test_the_database_is_never_overwritten(database: Database, measure: Measure, tmp_path: Path) -> None:
    measure(database, "gelu", FORWARD, 8)
    link = tmp_path / "link.db"
    link.symlink_to(database.path)
    for output in (database.path, tmp_path / "." / database.path.name, link):
        with pytest.raises(UsageError, match="is the database, expected another file"):
            train_bundle(database, output)
    assert len(database.read_samples()) == 8


def test_a_failed_write_leaves_the_earlier_bundle(
    database: Database, measure: Measure, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 8)
    output.write_bytes(b"an earlier bundle")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    failing(database, output, DataError, r"here\.kcast: cannot be written \(No space left on device\)$")


def test_an_export_that_answers_otherwise_leaves_the_earlier_bundle(
    database: Database, measure: Measure, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 8)
    measure(database, "embedding", FORWARD, 8)
    output.write_bytes(b"an earlier bundle")
    exports: list[bytes] = []
    to_onnx = fit_table.to_onnx

    def swapped(regressor: object, *others: object) -> bytes:
        # Every model after the first is the first's: right for embedding, wrong for gelu.
        exports.append(to_onnx(regressor, *others))  # type: ignore[arg-type]
        return exports[0]

    monkeypatch.setattr(fit_table, "to_onnx", swapped)
    failing(
        database, output, DataError, r"^gelu \(forward\): ONNX answers time_us that differs from Python's by"
    )


def test_errors_that_cannot_be_recorded_are_said(database: Database, measure: Measure, output: Path) -> None:
    measure(database, "gelu", FORWARD, 8)
    moved = database.path.with_name("moved.db")
    with pytest.raises(
        DataError,
        match=r"here\.kcast is written, but its errors are not recorded: .*bench\.db: no such database",
    ):
        train_bundle(database, output, on_progress=lambda *_: database.path.rename(moved))
    assert read_bundle(output).manifest.regressors


def vacuum_into(database: Database, path: Path) -> None:
    """By a connection of its own: the store's attach nothing, which VACUUM INTO does."""
    with closing(sqlite3.connect(database.path)) as connection:
        connection.execute("VACUUM INTO ?", [str(path)])


def in_one_file(database: Database) -> Path:
    """A copy of the database as an export is: without a write-ahead log."""
    path = database.path.with_name("exported.db")
    vacuum_into(database, path)
    return path


def test_a_training_that_is_refused_leaves_the_database_as_it_was(
    database: Database, measure: Measure, output: Path
) -> None:
    measure(database, "gelu", FORWARD, 7)
    path = in_one_file(database)
    before = path.read_bytes()
    with (
        open_measurements(path) as measurements,
        pytest.raises(DataError, match="no operator has enough rows"),
    ):
        train_bundle(measurements, output)
    with open_measurements(path) as measurements, pytest.raises(UsageError, match="seed is -1"):
        train_bundle(measurements, output, seed=-1)
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir() if file.name.startswith("exported")) == [
        path.name
    ]


def test_errors_are_recorded_though_the_database_is_read_only_until_then(
    database: Database, measure: Measure, output: Path
) -> None:
    measure(database, "gelu", FORWARD, 8)
    path, seen = in_one_file(database), []
    before = path.read_bytes()
    with open_measurements(path) as measurements:
        trained = train_bundle(measurements, output, on_progress=lambda *_: seen.append(path.read_bytes()))
    assert seen == [before]
    with Database.open(path, read_only=True) as recorded:
        assert [record.bundle_digest for record in recorded.records(PredictorRecord)] == [trained.digest]


def test_errors_are_in_the_file_itself_while_it_is_read(
    database: Database, measure: Measure, output: Path, tmp_path: Path
) -> None:
    measure(database, "gelu", FORWARD, 8)
    database.close()
    with open_measurements(database.path) as measurements:
        trained = train_bundle(measurements, output)
        alone = tmp_path / "alone.db"
        alone.write_bytes(database.path.read_bytes())  # without the -wal file
    with Database.open(alone, read_only=True) as copied:
        assert [record.bundle_digest for record in copied.records(PredictorRecord)] == [trained.digest]


def test_an_older_database_is_migrated_before_it_trains(
    database: Database, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 8)
    opened: list[bool] = []
    open_database = Database.open.__func__  # type: ignore[attr-defined]

    def noted(cls: type[Database], path: Path, *, read_only: bool = False) -> Database:
        opened.append(read_only)
        result = open_database(cls, path, read_only=read_only)
        assert isinstance(result, Database)
        return result

    monkeypatch.setattr(Database, "open", classmethod(noted))
    open_measurements(database.path).close()
    monkeypatch.setattr(training, "SCHEMA_VERSION", 99)
    open_measurements(database.path).close()
    assert opened == [True, False, True]
