"""schema.sql documents itself, is strict, and answers."""

import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, IngestedTrace, MeasuredStep, Prediction, PredictorRecord, Sample

SampleMaker = Callable[..., Sample]

TABLES = {
    "hardware", "fabric", "software", "operator", "source", "run", "run_note", "sample", "sample_flag",
    "repetition", "trace", "unrecognised_kernel", "kernel_name", "kernel", "step", "prediction", "predictor",
    "device_peak", "merge", "merged_row", "timeline", "traced_step", "traced_event", "event_kind", "event_scope",
    "failure_log", "step_times", "trace_clock", "matched_collective", "host_time", "lost_collective", "stream_wait",
}  # fmt: skip


def statements(database: Database, kind: str) -> dict[str, str]:
    rows = database.query("SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL", [kind])
    return {row["name"]: row["sql"] for row in rows}


def test_every_table_is_strict(database: Database) -> None:
    rows = database.query(
        "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    )
    strict = {row["name"]: row["strict"] for row in rows if not row["name"].startswith("sqlite_")}
    assert set(strict) == TABLES
    assert set(strict.values()) == {1}


def test_the_file_itself_comments_every_table_and_column(database: Database) -> None:
    for name, sql in statements(database, "table").items():
        first, *lines = sql.splitlines()
        assert re.search(r"-- \w.*\.$", first), f"{name} has no comment"
        columns = [row["name"] for row in database.query("SELECT name FROM pragma_table_info(?)", [name])]
        commented = {line.split()[0] for line in lines if re.search(r" -- \w", line)}
        assert set(columns) <= commented, name


def test_columns_that_hold_numbers_say_their_unit(database: Database) -> None:
    units = ("_us", "_s", "_days", "_bytes", "_gib", "_mhz", "_w", "_c", "_percent")
    counts = {"flops", "spread", "validation_error", "drift"}
    for table in TABLES:
        for row in database.query("SELECT name, type FROM pragma_table_info(?)", [table]):
            if row["type"] == "REAL":
                assert row["name"].endswith(units) or row["name"] in counts, (table, row["name"])


def test_every_foreign_key_has_an_index(database: Database) -> None:
    for table in TABLES:
        keys: dict[int, list[str]] = {}
        for row in database.query(
            'SELECT id, seq, "from" AS name FROM pragma_foreign_key_list(?) ORDER BY seq', [table]
        ):
            keys.setdefault(row["id"], []).append(row["name"])
        indexes = [
            [
                r["name"]
                for r in database.query(
                    "SELECT name FROM pragma_index_info(?) ORDER BY seqno", [index["name"]]
                )
            ]
            # A partial index has the rows that refer to something: `WHERE key IS NOT NULL`.
            for index in database.query("SELECT name FROM pragma_index_list(?)", [table])
            if index["name"] != "sample_without_time"
        ]
        for columns in keys.values():
            assert any(index[: len(columns)] == columns for index in indexes), (table, columns)


def test_every_view_says_what_it_answers_and_answers(
    database: Database,
    make_sample: SampleMaker,
    step: MeasuredStep,
    compute: ComputeFingerprint,
    add_trace: Callable[..., IngestedTrace],
) -> None:
    add_trace()
    failed = Sample.without_time(
        run_id=make_sample().run_id,
        operator="fused_causal_softmax",
        direction=make_sample().direction,
        dtype="float32",
        vector=(8, 64, 64),
        status="unsupported",
        reason="CUDA kernel",
    )
    database.add_samples([replace(make_sample(), flags=(("unstable", "spread 31 %"),)), failed])
    step_id = database.add(step)
    for statistic in ("time_us", "quiet_us"):
        database.add(
            Prediction(
                step_id=step_id, bundle_digest="b", timeline="schedule", statistic=statistic, predicted_s=0.66
            )
        )
    database.add_all([predictor(compute.digest)])
    answers = {}
    for name, sql in statements(database, "view").items():
        assert re.search(r"-- \w.*[.?]$", sql.splitlines()[0]), f"{name} has no comment"
        answers[name] = database.query(f"SELECT * FROM {name}")
    empty = {name for name, rows in answers.items() if not rows}
    # One device, one load, one rank.
    assert empty == {
        "hardware_side_by_side",
        "sustained_slowdown",
        "collective_match",
        "rank_arrival",
        "lost_part",
        "host_call",
    }
    [row] = answers["operator_time"]
    assert row["hardware"] == "Example CPU, 2 cores, 1 thread(s) per process"
    assert row["workload"] == "m=64, k=512, n=1536"
    assert (row["time_us"], row["repetitions"]) == (14.0, 10)
    assert row["gigaflops_per_s"] == pytest.approx(2 * 64 * 512 * 1536 / 14e-6 / 1e9, rel=1e-4)
    assert {(row["operator"], row["status"], row["samples"]) for row in answers["coverage"]} == {
        ("gemm", "ok", 1),
        ("fused_causal_softmax", "unsupported", 1),
    }
    slowest = answers["slowest_kernel"][0]
    assert (slowest["kernel"], slowest["launches"], slowest["total_us"]) == ("gemm_1", 10, 15.0)
    assert slowest["operators"] == "gemm forward"
    assert [row["reason"] for row in answers["failure"]] == ["CUDA kernel"]
    by_statistic = {row["statistic"]: row for row in answers["step_accuracy"]}
    assert by_statistic["time_us"]["error_percent"] == 10.0  # 0.66 s against the minimum, 0.6 s
    assert by_statistic["quiet_us"]["measured_statistic"] == "p10_s"
    assert by_statistic["quiet_us"]["error_percent"] == 7.32  # 0.66 s against the 10th percentile, 0.615 s
    assert answers["predictor_error"][0]["validation_error_percent"] == 4.0


def predictor(compute_id: str) -> PredictorRecord:
    return PredictorRecord(
        bundle_digest="b",
        operator="gemm",
        direction=Direction.FORWARD,
        dtype="float32",
        algorithm="xgboost",
        form="log(time) on the workload vector",
        hyperparameters={"max_depth": 4},
        training_rows=80,
        validation_error=0.04,
        size_bytes=300_000,
        trained_at="2026-02-01T00:00:00Z",
        statistic="quiet_us",
        dataset_digest="d",
        compute_id=compute_id,
    )


def test_views_work_without_this_package(database: Database, make_sample: SampleMaker) -> None:
    database.add_samples([make_sample()])
    with sqlite3.connect(database.path) as plain:
        plain.execute("PRAGMA trusted_schema = OFF")
        for name in statements(database, "view"):
            plain.execute(f"SELECT * FROM {name}").fetchall()
    plain.close()


def test_a_written_database_is_sound(
    database: Database, make_sample: SampleMaker, step: MeasuredStep
) -> None:
    database.add_samples([make_sample(rows=rows) for rows in (1, 2, 3)])
    database.add(step)
    assert database.query("PRAGMA foreign_key_check") == []
    assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_the_database_itself_refuses_a_time_without_success(
    database: Database, make_sample: SampleMaker
) -> None:
    database.add_samples([make_sample()])
    for change in (
        "time_us = NULL",
        "reason = 'none'",
        "status = 'maybe'",
        "time_us = 'fast'",
        "operator = 'x'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            database.connection.execute(f"UPDATE sample SET {change}")
