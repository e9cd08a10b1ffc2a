"""Reading: what need not be measured again, what to train on, what is stored."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database, IngestedTrace, PredictorRecord, Run, Sample, dataset_digest

SampleMaker = Callable[..., Sample]


def without_time(run_id: str, status: str, operator: str) -> Sample:
    return Sample.without_time(
        run_id=run_id,
        operator=operator,
        direction=Direction.FORWARD,
        dtype="float32",
        vector=(8, 64, 64),
        status=status,
        reason="because",
    )


def test_a_collection_resumes_after_what_has_a_time_or_is_unsupported(
    database: Database,
    make_sample: SampleMaker,
    run: Run,
) -> None:
    unsupported = without_time(run.id, "unsupported", "fused_causal_softmax")
    database.add_samples([make_sample(), make_sample(), unsupported, without_time(run.id, "failed", "gelu")])
    here = (run.compute_id, run.software_id)
    measured = {
        ("gemm", Direction.FORWARD, "float32", (64, 512, 1536)),
        ("fused_causal_softmax", Direction.FORWARD, "float32", (8, 64, 64)),
    }
    assert database.measured_points(*here) == measured
    assert database.measured_points(*here, conditions=run.conditions, fabric_id=run.fabric_id) == measured
    assert database.measured_points(*here, conditions={"processes_per_node": 2}) == set()
    assert database.measured_points(*here, dtype="bfloat16") == set()
    assert database.measured_points(*here, variant="in-place") == set()
    assert database.measured_points(*here, fabric_id="f" * 32) == set()
    assert database.measured_points("f" * 32, run.software_id) == set()
    assert database.measured_points(run.compute_id, "f" * 32) == set()


def test_samples_are_filtered_by_what_is_asked(
    database: Database,
    make_sample: SampleMaker,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    newer = replace(software, torch="2.14.0")
    second = replace(run, software_id=newer.digest)
    database.add_run(second, compute, fabric, newer)
    forward = make_sample()
    backward = make_sample(direction=Direction.BACKWARD, operator="swiglu")
    later = make_sample(run_id=second.id)
    failed = without_time(run.id, "failed", "gelu")
    database.add_samples([forward, backward, later, failed])

    def found(**filters: Any) -> set[str]:
        return {row.sample_id for row in database.read_samples(**filters)}

    assert found() == {forward.id, backward.id, later.id}
    assert found(status=None) == {forward.id, backward.id, later.id, failed.id}
    assert found(software_id=newer.digest) == found(run_id=second.id) == {later.id}
    assert (
        found(compute_id=compute.digest, fabric_id=fabric.digest, conditions={"processes_per_node": 1})
        == found()
    )
    assert found(operator="swiglu") == found(direction=Direction.BACKWARD) == {backward.id}
    assert found(dtype="float16") == found(compute_id="f" * 32) == set()


def test_a_sample_row_says_what_it_was_measured_on(
    database: Database, make_sample: SampleMaker, run: Run
) -> None:
    sample = make_sample()
    database.add_samples([sample])
    [row] = database.read_samples()
    assert (row.operator, row.direction, row.dtype) == ("gemm", Direction.FORWARD, "float32")
    assert row.vector == (64, 512, 1536)
    assert (row.time_us, row.quiet_us, row.reference_us) == (14.0, 10.9, 41.5)
    assert (row.flops, row.moved_bytes) == (sample.flops, sample.moved_bytes)
    assert (row.compute_id, row.fabric_id, row.software_id) == (
        run.compute_id,
        run.fabric_id,
        run.software_id,
    )
    assert row.conditions == {"processes_per_node": 1}
    assert row.source_kind == "collector"


def test_a_sample_row_of_one_time_has_the_mean_of_its_inner_repetitions(
    database: Database, make_sample: SampleMaker
) -> None:
    once = make_sample(rows=1, operator="all_reduce", direction=Direction.ONCE)
    last = once.repetitions[-1]
    stalled = replace(
        once, vector=(9, 1, 2), repetitions=(*once.repetitions[:-1], replace(last, time_us=4e3))
    )
    few = replace(once, vector=(8, 1, 2), repetitions=once.repetitions[:2], repetition_count=2)
    imported = replace(once, vector=(7, 1, 2), repetitions=())
    forward = make_sample(rows=2)
    database.add_samples([once, stalled, few, imported, forward])
    means = {row.sample_id: row.inner_mean_us for row in database.read_samples()}
    assert means == {
        once.id: pytest.approx(14.5),  # of 11 to 18
        stalled.id: pytest.approx(14.5),
        few.id: pytest.approx(10.5),  # of both
        imported.id: None,
        forward.id: None,
    }


def test_flags_come_back(database: Database, make_sample: SampleMaker) -> None:
    flags = (("other processes", "2 on the device"), ("unstable", "spread 31 %"))
    doubtful = replace(make_sample(rows=1), flags=flags)
    database.add_samples([doubtful, make_sample(rows=2)])
    assert sorted(row.flags for row in database.read_samples()) == [(), flags]
    assert doubtful in list(database.samples_in_full())
    rows = database.query("SELECT flag, detail, time_us, sample_id FROM doubtful_sample ORDER BY flag")
    assert [(row["flag"], row["detail"]) for row in rows] == list(flags)
    assert {row["sample_id"] for row in rows} == {doubtful.id}


def test_traces_of_real_runs_come_back(
    database: Database, add_trace: Callable[..., IngestedTrace], run: Run
) -> None:
    traces = [add_trace(rank=0), add_trace(rank=1), add_trace(rank=1)]
    assert database.records(IngestedTrace) == sorted(traces[:2], key=lambda trace: trace.id)
    rows = database.query(
        "SELECT rank, kernels, attributed_percent, recognised_percent FROM real_run ORDER BY rank"
    )
    assert [tuple(row.values()) for row in rows] == [(0, 4, 80.0, 20.0), (1, 4, 80.0, 20.0)]
    [row] = database.query("SELECT * FROM unrecognised WHERE trace_id = ?", [traces[0].id])
    assert (row["host_operator"], row["launches"], row["percent_of_trace"]) == ("aten::add", 3, 80.0)


def test_a_datasets_digest_is_that_of_a_set(database: Database, make_sample: SampleMaker) -> None:
    database.add_samples([make_sample(rows=rows) for rows in (1, 2, 3)])
    rows = database.read_samples()
    assert dataset_digest(rows) == dataset_digest(reversed(rows)) == dataset_digest([*rows, *rows])
    assert dataset_digest(rows) != dataset_digest(rows[1:])


def test_lists_say_what_there_is(
    database: Database,
    make_sample: SampleMaker,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    database.add_samples([make_sample(rows=rows) for rows in (1, 2)])
    for rows, fingerprint in (
        (database.hardware_list(), compute),
        (database.fabric_list(), fabric),
        (database.software_list(), software),
    ):
        [row] = rows
        assert (row.id, row.description, row.sample_count) == (fingerprint.digest, fingerprint.description, 2)
        assert row.fingerprint == fingerprint


def test_readable_columns_repeat_the_fingerprint(database: Database) -> None:
    for table in ("hardware", "fabric", "software"):
        [row] = database.query(f"SELECT * FROM {table}")
        for name, value in json.loads(row["fingerprint"]).items():
            assert row[name] == (json.dumps(value) if isinstance(value, list) else value)


def test_predictors_come_back(database: Database, run: Run) -> None:
    record = PredictorRecord(
        bundle_digest="b",
        operator="gemm",
        direction=Direction.FORWARD,
        dtype="float32",
        algorithm="random_forest",
        form="log(time) on the workload vector",
        hyperparameters={"max_depth": 6, "trees": 100},
        training_rows=80,
        validation_error=0.0412,
        size_bytes=300_000,
        trained_at="2026-02-01T00:00:00Z",
        statistic="quiet_us",
        dataset_digest="d",
        compute_id=run.compute_id,
        software_id=run.software_id,
    )
    database.add_all([record, record])
    assert database.records(PredictorRecord) == [record]
    with pytest.raises(DataError, match="not in the database"):
        database.add_all([replace(record, compute_id="f" * 32)])


def test_the_operator_table_is_kernelcasts_own_and_keeps_others(database: Database) -> None:
    database.connection.execute("UPDATE operator SET title = 'old words' WHERE name = 'gelu'")
    database.connection.execute("INSERT INTO operator VALUES ('later_operator', '', '', '[]', '{}', '{}')")
    database.close()
    with Database.open(database.path) as again:
        stored = {row["name"]: row for row in again.query("SELECT * FROM operator")}
    assert set(stored) == {*OPERATORS, "later_operator"}
    for name, operator in OPERATORS.items():
        assert stored[name]["title"] == operator.title
        assert list(json.loads(stored[name]["features"]).items()) == list(operator.features.items())


def test_values_that_make_no_sense_are_one_line(database: Database, make_sample: SampleMaker) -> None:
    database.add_samples([make_sample()])
    database.connection.execute("UPDATE sample SET vector = '[1, 2'")
    with pytest.raises(DataError, match=r"bench\.db"):
        database.read_samples()
