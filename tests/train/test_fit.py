"""`train_bundle`: a database in, a bundle that the runtime reads out."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from kernelcast.runtime import Estimator, read_bundle
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, PredictorRecord, Sample, dataset_digest
from kernelcast.train import fit as training
from kernelcast.train.dataset import Row, Table, tables
from kernelcast.train.fit import Trained, train_bundle
from kernelcast.train.notes import Note
from kernelcast.train.report.figures import figures
from kernelcast.train.selection import select

Measure = Callable[..., list[Sample]]
PAGE = (Path(__file__).parent.parent.parent / "docs" / "bundle.md").read_text(encoding="utf-8")
FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE

pytestmark = pytest.mark.usefixtures("few_candidates")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "here.kcast"


def test_processes_are_started_where_the_work_is_worth_it(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "available_cores", lambda: 5)
    one = make_table("gelu", count=1)
    many = replace(one, workloads=np.ones((1999, 3)), times_us=np.ones(1999))
    for tables_, jobs in (([one] * 23, 1), ([one] * 24, 5), ([many], 1), ([many, one], 5)):
        assert training._worthwhile_jobs(tables_) == jobs


def test_the_bundle_answers_what_was_fitted(database: Database, measure: Measure, output: Path) -> None:
    samples = measure(database, "gelu", FORWARD, 16) + measure(database, "point_to_point", ONCE, 10)
    trained = train_bundle(database, output)
    predictor = Predictor(read_bundle(output))
    for operator, direction in (("gelu", FORWARD), ("point_to_point", ONCE)):
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
    assert all(0 <= entry.validation_error < 0.1 for entry in trained.manifest.regressors)


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
        database, "point_to_point", ONCE, 8, measured_at="2026-02-01T00:00:00Z"
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
        ("point_to_point", ONCE, 8),
    ]
    vectors = [sample.vector for sample in samples if sample.operator == "gelu"]
    assert gelu.training_range == tuple((min(column), max(column)) for column in zip(*vectors, strict=True))
    assert gelu.algorithm == "xgboost"
    assert gelu.form in ("power_law", "roofline")
    assert gelu.role_errors == {"": pytest.approx(gelu.validation_error)}
    assert trained.skipped == (
        Note(operator="softmax", direction=FORWARD, text="3 distinct workloads, expected 8 or more"),
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
    [record] = database.records(PredictorRecord)
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
    assert {record.statistic for record in database.records(PredictorRecord)} == {"quiet_us", "time_us"}


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
    assert [skipped.text[:15] for skipped in trained.skipped] == ["2 of 10 samples"]


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


def test_a_collective_knows_its_layouts_and_everything_its_interval(
    database: Database, measure: Measure, output: Path
) -> None:
    times = {(2**i, nodes, 2): 10.0 + 2**i / 100 for i in range(12) for nodes in (1, 4)}
    measure(database, "all_reduce", ONCE, times_us=times)
    measure(database, "gelu", FORWARD, 10)
    reduce, gelu = train_bundle(database, output).manifest.regressors
    assert (reduce.layouts, gelu.layouts) == (((1, 2), (4, 2)), ())
    assert reduce.interval.method == "cross_conformal"
    assert reduce.interval_coverage is not None
    assert gelu.interval.method == "largest_error"
    assert gelu.interval_coverage is None
    predictor = Predictor(read_bundle(output))
    answers = predictor.answers("all_reduce", ONCE, list(times))
    width = np.exp(reduce.interval.log_half_widths[0])
    assert answers[:, 1] == pytest.approx(answers[:, 0] / width, rel=1e-5)
    assert answers[:, 2] == pytest.approx(answers[:, 0] * width, rel=1e-5)


def test_a_model_says_what_it_is(
    database: Database, measure: Measure, output: Path, compute: ComputeFingerprint, fabric: FabricFingerprint
) -> None:
    measure(database, "point_to_point", ONCE, 10)
    measure(database, "gelu", FORWARD, 10)
    trained = train_bundle(database, output)
    bundle = read_bundle(output)
    for entry in trained.manifest.regressors:
        model = onnx.load_from_string(bundle.model(entry.key))
        says = {item.key: item.value for item in model.metadata_props}
        assert list(says) == sorted(says)
        assert {name for name in says if f"`{name}`" not in PAGE} == set()
        assert (says["operator"], says["direction"]) == (entry.operator, entry.direction.value)
        assert says["features"].split() == list(entry.features)
        assert json.loads(says["feature_units"]) == dict(zip(entry.features, entry.units, strict=True))
        assert (says["unit"], says["dtype"], says["statistic"]) == ("microseconds", "float32", "quiet")
        assert says["hardware"] == (fabric if entry.operator == "point_to_point" else compute).description
        assert (says["software"], says["rows"]) == ("torch 2.13.0", "10")
        assert "load" not in says  # none is stated
        assert json.loads(says["validation_error"]) == entry.validation_error
        assert json.loads(says["interval"]) == entry.interval.to_dict()
        assert json.loads(says["training_range"]) == [list(pair) for pair in entry.training_range]
        assert says["kernelcast_version"] == trained.manifest.kernelcast_version


def test_roles_have_errors_of_their_own_and_the_mean_is_over_them(
    database: Database, measure: Measure, output: Path
) -> None:
    samples = measure(database, "gemm", FORWARD, 20, role="qkv")
    doubled = {sample.vector: 2 * (sample.quiet_us or 0) for sample in samples[::4]}
    measure(database, "gemm", FORWARD, times_us=doubled, role="mlp_up")
    measure(database, "gelu", FORWARD, 12)
    trained: Trained = train_bundle(database, output)
    gelu, gemm = trained.manifest.regressors
    assert gemm.rows == 20
    assert list(gemm.role_errors) == ["mlp_up", "qkv"]
    # The lower quiet time counts; twice of it is off by a half.
    assert gemm.role_errors["mlp_up"] == pytest.approx(0.5, abs=0.2)
    assert gemm.role_errors["qkv"] == pytest.approx(gemm.validation_error)
    errors = [*gelu.role_errors.values(), *gemm.role_errors.values()]
    assert figures(trained).mean_validation_error == pytest.approx(sum(errors) / 3)


def test_every_direction_present_trains_sums_and_parts_alike(
    database: Database, measure: Measure, output: Path
) -> None:
    directions = [BACKWARD, Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT]
    for direction in directions:
        measure(database, "gemm", direction, 10, role="qkv")
    trained = train_bundle(database, output)
    assert [entry.direction for entry in trained.manifest.regressors] == directions
    assert trained.skipped == ()
    assert read_bundle(output).manifest == trained.manifest


@pytest.mark.parametrize(
    ("kv_heads", "equal"), [((8, 8), ("kv_heads", "heads")), ((8, 2), ())], ids=["equal", "grouped"]
)
def test_features_that_are_equal_in_all_rows_are_named(
    database: Database, measure: Measure, output: Path, kv_heads: tuple[int, int], equal: tuple[str, ...]
) -> None:
    times_us = {(1, 64 * i, 8, kv_heads[i % 2], 64): 10.0 * i for i in range(1, 11)}
    measure(database, "rope", FORWARD, times_us=times_us)
    measure(database, "gelu", FORWARD, 10)
    gelu, rope = train_bundle(database, output).manifest.regressors
    assert (gelu.equal_features, rope.equal_features) == ((), equal)
