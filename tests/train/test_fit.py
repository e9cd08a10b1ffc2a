"""`train_bundle`: a database in, a bundle that the runtime reads out, and every way in which that can fail."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from kernelcast.runtime import DataError, Estimator, UsageError, read_bundle
from kernelcast.runtime.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.predictor import Predictor
from kernelcast.store import Database, Sample, dataset_digest
from kernelcast.train import fit as training
from kernelcast.train import fitting
from kernelcast.train.dataset import Row, tables
from kernelcast.train.fit import Trained, open_measurements, train_bundle
from kernelcast.train.screening import Skipped
from kernelcast.train.selection import select

Measure = Callable[..., list[Sample]]
PAGE = (Path(__file__).parent.parent.parent / "docs" / "bundle.md").read_text(encoding="utf-8")
FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE

pytestmark = pytest.mark.usefixtures("few_candidates")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "here.kcast"


def assert_untouched(output: Path, content: bytes | None = None) -> None:
    """Nothing written, neither the bundle nor a part of it."""
    assert (output.read_bytes() if output.exists() else None) == content
    assert not list(output.parent.glob("*.partial")) + list(output.parent.glob(".*.partial"))


def test_the_bundle_answers_what_was_fitted(database: Database, measure: Measure, output: Path) -> None:
    samples = measure(database, "gelu", FORWARD, 16) + measure(database, "pp_p2p", ONCE, 10)
    trained = train_bundle(database, output)
    predictor = Predictor(read_bundle(output))
    for operator, direction in (("gelu", FORWARD), ("pp_p2p", ONCE)):
        own = [s for s in samples if s.operator == operator]
        predicted = predictor.predict_us(operator, direction, [s.vector for s in own])
        assert predicted == pytest.approx([s.quiet_us for s in own], rel=0.05)
        rows = [
            Row(operator=operator, direction=direction, vector=s.vector, time_us=s.quiet_us or 0) for s in own
        ]
        in_python = select(tables(rows, statistic="quiet")[0], training.DEFAULT_SEED).regressor
        vectors = np.array([s.vector for s in own], dtype=np.float64)
        assert predicted == pytest.approx(in_python.predict_us(2 * vectors / 2), rel=1e-4)
    assert Estimator.load(output)
    assert 0 <= trained.mean_validation_error < 0.1


def test_the_manifest_says_what_it_was_trained_on(
    database: Database,
    measure: Measure,
    output: Path,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    few = measure(database, "softmax", FORWARD, 3)
    samples = measure(database, "gelu", FORWARD, 10) + measure(
        database, "pp_p2p", ONCE, 8, measured_at="2026-02-01T00:00:00Z"
    )
    trained = train_bundle(database, output, seed=3)
    bundle = read_bundle(output)
    manifest = bundle.manifest
    assert manifest == trained.manifest
    assert bundle.digest == trained.digest
    assert (manifest.compute, manifest.fabric, manifest.software) == ((compute,), (fabric,), (software,))
    assert (manifest.dtype, manifest.statistic, manifest.seed) == ("float32", "quiet", 3)
    assert manifest.created_at == "2026-02-01T00:00:00.000Z"
    used = [row for row in database.read_samples() if row.sample_id not in {sample.id for sample in few}]
    assert len(used) == len(samples)
    assert manifest.dataset_digest == dataset_digest(used)
    gelu, p2p = manifest.regressors
    assert [(entry.operator, entry.direction, entry.rows) for entry in (gelu, p2p)] == [
        ("gelu", FORWARD, 10),
        ("pp_p2p", ONCE, 8),
    ]
    vectors = [sample.vector for sample in samples if sample.operator == "gelu"]
    assert gelu.training_range == tuple((min(column), max(column)) for column in zip(*vectors, strict=True))
    assert gelu.algorithm == "xgboost"
    assert gelu.form in ("power_law", "roofline")
    assert trained.mean_validation_error == (gelu.validation_error + p2p.validation_error) / 2
    assert trained.skipped == (
        Skipped(operator="softmax", direction=FORWARD, reason="3 distinct workloads, expected 8 or more"),
    )


def test_the_database_keeps_the_errors(
    database: Database,
    measure: Measure,
    output: Path,
    compute: ComputeFingerprint,
    software: SoftwareFingerprint,
) -> None:
    measure(database, "gelu", FORWARD, 8)
    trained = train_bundle(database, output)
    train_bundle(database, output)
    [record] = database.predictor_list()
    [entry] = trained.manifest.regressors
    assert (record.operator, record.direction, record.dtype) == ("gelu", FORWARD, "float32")
    assert (record.bundle_digest, record.dataset_digest) == (trained.digest, trained.manifest.dataset_digest)
    assert record.validation_error == pytest.approx(entry.validation_error, abs=1e-9)
    assert (record.algorithm, record.form) == (entry.algorithm, entry.form)
    assert dict(record.hyperparameters) == dict(entry.hyperparameters)
    assert (record.training_rows, record.size_bytes) == (8, entry.size_bytes)
    assert (record.statistic, record.trained_at) == ("quiet_us", "2026-01-31T08:16:00.000Z")
    assert (record.compute_id, record.software_id, record.fabric_id) == (
        compute.digest,
        software.digest,
        None,
    )
    train_bundle(database, output, statistic="middle_five")
    assert {record.statistic for record in database.predictor_list()} == {"quiet_us", "time_us"}


def test_the_same_rows_and_seed_give_the_same_bytes(
    database: Database, measure: Measure, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}.kcast" for name in "abc"]
    measure(database, "gelu", FORWARD, 10)
    measure(database, "embedding", BACKWARD, 10)
    first = train_bundle(database, paths[0])
    # Rows of operators that have too few do not count, nor do failures, nor the order of what is stored.
    measure(database, "softmax", FORWARD, 2)
    assert train_bundle(database, paths[1]).digest == first.digest
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with Database.open(tmp_path / "other.db", create=True) as other:
        measure(other, "embedding", BACKWARD, 10)
        measure(other, "gelu", FORWARD, 10)
        assert train_bundle(other, paths[2]).digest == first.digest
    assert train_bundle(database, paths[2], seed=21).digest != first.digest


def test_each_statistic_trains_on_its_own_times(database: Database, measure: Measure, output: Path) -> None:
    samples = measure(database, "gelu", FORWARD, 12)
    vectors = [sample.vector for sample in samples]
    answers = {}
    for statistic in ("quiet", "middle_five"):
        assert train_bundle(database, output, statistic=statistic).manifest.statistic == statistic
        answers[statistic] = Predictor(read_bundle(output)).predict_us("gelu", FORWARD, vectors)
    assert answers["middle_five"] / answers["quiet"] == pytest.approx(np.full(12, 1.1), rel=0.02)


def test_what_has_no_time_never_trains(database: Database, measure: Measure, output: Path) -> None:
    [first, *_] = measure(database, "gelu", FORWARD, 9)
    for number, status in enumerate(("failed", "unsupported")):
        without = Sample.without_time(
            run_id=first.run_id,
            operator="gelu",
            direction=FORWARD,
            dtype="float32",
            vector=(9999, 9999, number + 1),
            status=status,
            reason="out of memory",
        )
        database.add_samples([without])
    [entry] = train_bundle(database, output).manifest.regressors
    assert entry.rows == 9
    assert max(high for _, high in entry.training_range) < 9999


def test_a_repeated_workload_counts_once(database: Database, measure: Measure, output: Path) -> None:
    samples = measure(database, "gelu", FORWARD, 8)
    slow = {sample.vector: 50 * (sample.quiet_us or 0) for sample in samples}
    measure(database, "gelu", FORWARD, times_us=slow)
    [entry] = train_bundle(database, output).manifest.regressors
    assert entry.rows == 8
    predicted = Predictor(read_bundle(output)).predict_us("gelu", FORWARD, [s.vector for s in samples])
    assert predicted == pytest.approx([s.quiet_us for s in samples], rel=0.2)


def test_times_of_zero_do_not_train(database: Database, measure: Measure, output: Path) -> None:
    measure(database, "gelu", FORWARD, 8)
    measure(database, "gelu", FORWARD, times_us={(1, 1, 1): 0.0, (1, 1, 2): -4.0})
    trained = train_bundle(database, output)
    assert [entry.rows for entry in trained.manifest.regressors] == [8]
    assert [skipped.reason[:15] for skipped in trained.skipped] == ["2 of 10 samples"]


@pytest.mark.parametrize(
    ("measured_at", "started_at", "created_at"),
    [
        (None, "2026-01-31T08:15:00Z", "2026-01-31T08:15:00.000Z"),
        (None, None, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_rows_that_do_not_say_when_still_train(
    database: Database,
    measure: Measure,
    output: Path,
    measured_at: None,
    started_at: str | None,
    created_at: str,
) -> None:
    measure(database, "gelu", FORWARD, 8, measured_at=measured_at, started_at=started_at)
    train_bundle(database, output)
    assert read_bundle(output).manifest.created_at == created_at


def test_progress_names_every_operator(database: Database, measure: Measure, output: Path) -> None:
    measure(database, "gelu", FORWARD, 8)
    measure(database, "embedding", FORWARD, 8)
    measure(database, "softmax", FORWARD, 2)
    shown: list[tuple[int, int, str]] = []
    train_bundle(database, output, on_progress=lambda *step: shown.append(step))
    assert shown == [(1, 2, "embedding"), (2, 2, "gelu")]


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
    assert database.predictor_list() == []


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
    failing(database, output, UsageError, r"more than one hardware, choose one with --hardware: .*; ")


def test_rows_without_a_quiet_time_say_what_to_do(database: Database, measure: Measure, output: Path) -> None:
    measure(database, "gelu", FORWARD, 8, quiet=False)
    failing(
        database,
        output,
        DataError,
        "of gelu has no quiet time, expected one; train with --statistic middle_five",
    )
    assert train_bundle(database, output, statistic="middle_five").manifest.statistic == "middle_five"


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
    to_onnx = fitting.to_onnx

    def swapped(regressor: object, *others: object) -> bytes:
        # Every model after the first is the first's: right for embedding, wrong for gelu.
        exports.append(to_onnx(regressor, *others))  # type: ignore[arg-type]
        return exports[0]

    monkeypatch.setattr(fitting, "to_onnx", swapped)
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


def in_one_file(database: Database) -> Path:
    """A copy of the database as an export is: without a write-ahead log."""
    path = database.path.with_name("exported.db")
    database.connection.execute("VACUUM INTO ?", [str(path)])
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
        assert [record.bundle_digest for record in recorded.predictor_list()] == [trained.digest]


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


def test_what_has_not_changed_is_not_fitted_again(
    database: Database, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 10)
    measure(database, "embedding", BACKWARD, 10)
    first = train_bundle(database, tmp_path / "first.kcast")
    assert [s.table.operator for s in first.selections] == ["embedding", "gelu"]
    earlier = read_bundle(tmp_path / "first.kcast")
    measure(database, "gelu", FORWARD, times_us={(7, 77, 777): 40.0})
    measure(database, "rope", FORWARD, 10)
    again = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert [s.table.operator for s in again.selections] == ["gelu", "rope"]
    full = train_bundle(database, tmp_path / "full.kcast")
    assert len(full.selections) == 3
    assert (tmp_path / "again.kcast").read_bytes() == (tmp_path / "full.kcast").read_bytes()
    # Nothing new, and over itself.
    over = train_bundle(database, tmp_path / "full.kcast", earlier=read_bundle(tmp_path / "full.kcast"))
    assert (over.selections, over.digest) == ((), full.digest)
    # Another seed, statistic or code: everything anew.
    for options in ({"seed": 21}, {"statistic": "middle_five"}):
        other = train_bundle(database, tmp_path / "other.kcast", earlier=earlier, **options)  # type: ignore[arg-type]
        assert len(other.selections) == 3
    monkeypatch.setattr("kernelcast.train.recipe._code_digest", lambda: "0" * 32)
    assert len(train_bundle(database, tmp_path / "other.kcast", earlier=earlier).selections) == 3


def test_new_rows_of_a_relative_count_too(database: Database, measure: Measure, tmp_path: Path) -> None:
    measure(database, "mlp_up_linear", FORWARD, 10)
    measure(database, "mlp_down_linear", FORWARD, 10)
    measure(database, "gelu", FORWARD, 10)
    train_bundle(database, tmp_path / "first.kcast")
    measure(database, "mlp_up_linear", FORWARD, times_us={(7, 77, 777): 40.0})
    earlier = read_bundle(tmp_path / "first.kcast")
    again = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert sorted(s.table.operator for s in again.selections) == ["mlp_down_linear", "mlp_up_linear"]
    assert train_bundle(database, tmp_path / "full.kcast").digest == again.digest


def test_only_what_the_database_holds_is_taken_over(
    database: Database, measure: Measure, tmp_path: Path
) -> None:
    measure(database, "gelu", FORWARD, 10)
    with Database.open(tmp_path / "more.db", create=True) as more:
        measure(more, "gelu", FORWARD, 10)
        measure(more, "rope", FORWARD, 10)
        train_bundle(more, tmp_path / "more.kcast")
    trained = train_bundle(database, tmp_path / "a.kcast", earlier=read_bundle(tmp_path / "more.kcast"))
    assert [entry.operator for entry in trained.manifest.regressors] == ["gelu"]
    assert trained.selections == ()


def test_another_machine_takes_nothing_over(
    database: Database, measure: Measure, tmp_path: Path, compute: ComputeFingerprint
) -> None:
    measure(database, "gelu", FORWARD, 10)
    train_bundle(database, tmp_path / "a.kcast")
    with Database.open(tmp_path / "other.db", create=True) as other:
        measure(other, "gelu", FORWARD, 10, compute=replace(compute, cores=4))
        trained = train_bundle(other, tmp_path / "b.kcast", earlier=read_bundle(tmp_path / "a.kcast"))
    assert len(trained.selections) == 1


def test_a_collective_knows_its_layouts_and_everything_its_interval(
    database: Database, measure: Measure, output: Path
) -> None:
    times = {(2**i, nodes, 2): 10.0 + 2**i / 100 for i in range(12) for nodes in (1, 4)}
    measure(database, "dp_all_reduce", ONCE, times_us=times)
    measure(database, "gelu", FORWARD, 10)
    reduce, gelu = train_bundle(database, output).manifest.regressors
    assert (reduce.layouts, gelu.layouts) == (((1, 2), (4, 2)), ())
    assert reduce.interval.method == "cross_conformal"
    assert reduce.interval_coverage is not None
    assert gelu.interval.method == "largest_error"
    assert gelu.interval_coverage is None
    predictor = Predictor(read_bundle(output))
    answers = predictor.answers("dp_all_reduce", ONCE, list(times))
    width = np.exp(reduce.interval.log_half_widths[0])
    assert answers[:, 1] == pytest.approx(answers[:, 0] / width, rel=1e-5)
    assert answers[:, 2] == pytest.approx(answers[:, 0] * width, rel=1e-5)


def test_a_model_says_what_it_is(
    database: Database, measure: Measure, output: Path, compute: ComputeFingerprint, fabric: FabricFingerprint
) -> None:
    measure(database, "pp_p2p", ONCE, 10)
    measure(database, "gelu", FORWARD, 10)
    trained = train_bundle(database, output)
    bundle = read_bundle(output)
    for entry in trained.manifest.regressors:
        model = onnx.load_from_string(bundle.models[entry.key])
        says = {item.key: item.value for item in model.metadata_props}
        assert list(says) == sorted(says)
        assert {name for name in says if f"`{name}`" not in PAGE} == set()
        assert (says["operator"], says["direction"]) == (entry.operator, entry.direction.value)
        assert says["features"].split() == list(entry.features)
        assert json.loads(says["feature_units"]) == dict(zip(entry.features, entry.units, strict=True))
        assert (says["unit"], says["dtype"], says["statistic"]) == ("microseconds", "float32", "quiet")
        assert says["hardware"] == (fabric if entry.operator == "pp_p2p" else compute).description
        assert (says["software"], says["rows"]) == ("torch 2.13.0", "10")
        assert json.loads(says["validation_error"]) == entry.validation_error
        assert json.loads(says["interval"]) == entry.interval.to_dict()
        assert json.loads(says["training_range"]) == [list(pair) for pair in entry.training_range]
        assert says["kernelcast_version"] == trained.manifest.kernelcast_version


def test_the_mean_is_over_the_regressors(database: Database, measure: Measure, output: Path) -> None:
    measure(database, "gelu", FORWARD, 8)
    trained: Trained = train_bundle(database, output)
    [entry] = trained.manifest.regressors
    entries = tuple(
        replace(entry, validation_error=error, direction=d, file=f"models/gelu.{d}.onnx")
        for error, d in ((0.1, FORWARD), (0.3, BACKWARD))
    )
    assert (
        replace(trained, manifest=replace(trained.manifest, regressors=entries)).mean_validation_error == 0.2
    )
