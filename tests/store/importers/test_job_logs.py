"""Logs of jobs: what counts as a failure, what cannot be read, and that they are facts like others."""

import gzip
import json
import math
from pathlib import Path

import pytest

from kernelcast.runtime import DataError
from kernelcast.store import Database
from kernelcast.store.importers import job_logs
from kernelcast.store.importers.job_logs import read_failure_log, read_mlperf_steps
from kernelcast.store.steps import FailureLog

LOGS = Path(__file__).resolve().parents[4] / "shared" / "data" / "mlperf" / "logs"


def _job(state: object, elapsed: float, nodes: object) -> dict[str, object]:
    return {"state": {"current": state}, "time": {"elapsed": elapsed}, "allocation_nodes": nodes}


@pytest.fixture
def sacct(tmp_path: Path) -> Path:
    """Two failures by nodes, one by the program, one that goes on, one without fields."""
    jobs = [
        _job(["COMPLETED"], 86_400, 4),
        _job("NODE_FAIL", 43_200, {"set": True, "number": 8}),
        _job(["BOOT_FAIL"], 0, 2),
        _job(["FAILED"], 86_400, 1),
        _job(["COMPLETED"], 0.5, 0),
        _job(["COMPLETED"], -0.5, 1),
        _job(["COMPLETED"], 1, -1),
        _job(["RUNNING"], 10, 1),
        {"state": {}},
    ]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    return path


def test_nodes_failures_count_and_nothing_else(sacct: Path) -> None:
    found = read_failure_log(sacct)
    assert (found.kind, found.failures, found.unreadable) == ("sacct", 2, 3)
    assert found.node_days == pytest.approx(4 + 4 + 1)
    assert found.causes == {"NODE_FAIL": 1, "BOOT_FAIL": 1}
    assert found.failed_s == (345_600, 0)
    assert found.ended_s == (345_600, 86_400, 0)


def test_csv_of_starts_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "start,end,nodes,outcome,cause\n"
        "2026-01-01T00:00,2026-01-02T00:00,2,failed,switch\n"
        "2026-01-02T00:00,2026-01-03T00:00,2,ok,\n"
        "2026-01-02T00:00:00,2026-01-02T00:00:00.5,2,failed,\n"
        "2026-01-02,yesterday,2,ok,\n"
        "2026-01-02T00:00:00.5,2026-01-02T00:00:00,2,ok,\n"
        "2026-01-02T00:00,2026-01-02T00:00,1,ok,\n"
        "2026-01-02T00:00,2026-01-02T00:00,0,ok,\n"
    )
    found = read_failure_log(path, gpus_per_node=4)
    assert (found.kind, found.causes, found.unreadable) == ("csv", {"switch": 1, "failed": 1}, 3)
    assert found.ended_s == (172_800, 0)
    assert found.node_days == pytest.approx(4 + 2 * 0.5 / 86_400, rel=1e-9)


def test_outcomes_of_another_vocabulary_are_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("start,end,nodes,outcome\n2026-01-01,2026-01-02,1,ok\n2026-01-01,2026-01-02,1,FAILED\n")
    with pytest.raises(DataError, match=r"jobs.csv:3: outcome is 'FAILED', expected failed or ok"):
        read_failure_log(path)


@pytest.mark.parametrize(
    "content",
    [
        "", "a,b\n1,2\n", "{", '{"jobs": 1}', "{}", '{"jobs": [{}]}', "[" * 100_000,
        json.dumps({"jobs": [_job("COMPLETED", 1, math.inf), _job("COMPLETED", math.inf, 1)]}),
        json.dumps({"jobs": [_job("COMPLETED", 1, 10**400), _job([], 1, 1), _job("COMPLETED", math.nan, 1)]}),
        f"start,end,nodes,outcome\n2026-01-01,2026-01-02,{10**400},ok\n",
        f"start,end,nodes,outcome\n{'x' * 200_000}\n",
    ],
)  # fmt: skip
def test_what_is_no_log_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "some.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=r"expected") as error:
        read_failure_log(path)
    assert "\n" not in str(error.value)


def test_logs_merge_like_other_rows(sacct: Path, tmp_path: Path) -> None:
    log = read_failure_log(sacct, device_name="NVIDIA H100")
    for name in ("one.db", "other.db"):
        with Database.open(tmp_path / name, create=True) as database:
            assert database.add_all([log, log]) == 1
            assert database.add_all([log]) == 0
            assert database.records(FailureLog) == [log]
    with Database.open(tmp_path / "one.db") as one, Database.open(tmp_path / "other.db") as other:
        assert one.content_digest() == other.content_digest()


@pytest.mark.skipif(not LOGS.is_dir(), reason="../shared/data/mlperf is absent")
def test_steps_of_public_logs(tmp_path: Path) -> None:
    [path] = LOGS.glob("v5.0_NVIDIA*405b*.txt.gz")
    found = read_mlperf_steps(path, gpus=8192)
    assert (found.publisher, found.model_name) == ("NVIDIA", "llama31_405b")
    assert sorted(found.times_s)[len(found.times_s) // 2] == pytest.approx(5.18, abs=0.01)
    assert found.start_s == pytest.approx(399, abs=1)
    plain = tmp_path / "result.txt"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    with pytest.raises(DataError, match="expected --nodes"):
        read_failure_log(plain)
    log = read_failure_log(plain, nodes=1024)
    assert (log.kind, log.failures, len(log.ended_s)) == ("mlperf", 0, 1)


@pytest.mark.parametrize(("count", "expected"), [(3, (1.0, 1.0, 1.0)), (7, (2.0, 2.0))])
def test_the_first_five_steps_count_where_there_are_no_more(
    tmp_path: Path, count: int, expected: tuple[float, ...]
) -> None:
    path = tmp_path / "log.txt"
    lines = [
        {"key": "tracked_stats", "time_ms": 1_000 * n, "value": {"train_step_time": 1.0 if n < 5 else 2.0}}
        for n in range(count)
    ]
    lines[1:1] = [{**lines[0], "key": "other"}, {**lines[0], "value": 3}, {**lines[0], "value": {"loss": 2}}]
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))
    assert read_mlperf_steps(path, gpus=8).times_s == expected


def test_mlperf_logs_without_steps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text(':::MLLOG {"time_ms": 1, "key": "run_start"}\n:::MLLOG broken\n')
    with pytest.raises(DataError, match="has no train_step_time"):
        read_mlperf_steps(path, gpus=8)
    path.write_bytes(b"\x1f\x8bdamaged")
    with pytest.raises(DataError, match="is damaged"):
        read_mlperf_steps(path, gpus=8)


def test_logs_have_a_limit_that_counts_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.txt.gz"
    text = ':::MLLOG {"time_ms": 1, "key": "tracked_stats", "value": {"train_step_time": 2}}\n' + 99 * "\n"
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(job_logs, "MOST_BYTES", len(text))
    assert read_mlperf_steps(path, gpus=8).times_s == (2,)
    path.write_bytes(gzip.compress(text.encode() + b" "))
    with pytest.raises(DataError, match=f"is too large, expected at most {len(text)} bytes"):
        read_mlperf_steps(path, gpus=8)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([(1_000, "run_start", None)], None),
        ([(1_000, "run_start", None), (3_500, "run_stop", "success")], (2.5, "")),
        ([(1_000, "run_start", None), (1_000, "run_stop", "aborted")], (0, "")),
        ([(1_000, "run_start", None), (500, "run_stop", "success")], None),
        (
            [(0, "run_stop", "success"), (0, "run_stop", "error"), (2_000, "block_stop", "success")],
            (2, "no run_stop"),
        ),
        ([(0, "run_start", None), (2_000, "run_stop", None)], (2, "no run_stop")),
        ([(0, "run_start", None), (2_000, "epoch_stop", "success")], (2, "no run_stop")),
    ],
)
def test_jobs_of_mlperf(
    tmp_path: Path, events: list[tuple[int, str, str | None]], expected: tuple[float, str] | None
) -> None:
    lines = [
        {"time_ms": time_ms, "key": key, "metadata": {"status": status} if status else None}
        for time_ms, key, status in events
    ]
    path = tmp_path / "result.txt"
    path.write_text(":::MLLOG [1]\n" + "".join(f"0: :::MLLOG {json.dumps(line)}\n" for line in lines))
    if expected is None:
        with pytest.raises(DataError, match="none of 1 jobs can be read"):
            read_failure_log(path, nodes=3)
        return
    log = read_failure_log(path, nodes=3)
    seconds, cause = expected
    assert log.node_days == pytest.approx(3 * seconds / 86_400, rel=1e-4)  # kept with five digits
    assert log.causes == ({cause: 1} if cause else {})


def test_what_a_log_of_mlperf_says(tmp_path: Path) -> None:
    lines = [
        (1_000, "submission_org", "One"),
        (2_000, "submission_benchmark", "some_model"),
        (2_500, "run_start", None),
        (3_000, "global_batch_size", 64),
        (4_000, "tracked_stats", {"train_step_time": 1.5}),
        (5_000, "run_start", None),
        (9_000, "run_stop", None),
    ]
    path = tmp_path / "result.txt"
    rows = [json.dumps({"time_ms": time_ms, "key": key, "value": value}) for time_ms, key, value in lines]
    path.write_text("".join(f":::MLLOG {row}\n" for row in rows))
    found = read_mlperf_steps(path, gpus=8)
    assert (found.publisher, found.model_name, found.samples_per_step) == ("One", "some_model", 64)
    assert (found.start_s, found.total_s) == (1.5, 8)
    path.write_text(f":::MLLOG {rows[4]}\n" + rows[3].replace("64", '"many"').join([":::MLLOG ", "\n"]))
    found = read_mlperf_steps(path, gpus=8)
    assert (found.publisher, found.model_name, found.samples_per_step, found.start_s) == ("", "", None, None)


@pytest.mark.parametrize("batch", [10**30, 0, -1, 2.5])
def test_values_of_a_log_without_sense_are_left_out(tmp_path: Path, batch: object) -> None:
    path = tmp_path / "result.txt"
    lines = [
        {"key": ["x"], "time_ms": 0},
        {"key": "run_start", "time_ms": 10**400},
        {"key": "run_start", "time_ms": 1_000},
        {"key": "global_batch_size", "time_ms": 1_000, "value": batch},
        *(
            {"key": "tracked_stats", "time_ms": 1_000, "value": {"train_step_time": one}}
            for one in ("x", 0, -1.5, 2, 1e300)
        ),
        {"key": "run_stop", "time_ms": 3_000, "metadata": ["status"]},
    ]  # fmt: skip
    path.write_text(":::MLLOG {\n" + "".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))
    found = read_mlperf_steps(path, gpus=8)
    assert (found.times_s, found.samples_per_step, found.total_s) == ((2,), None, 2)
    assert read_failure_log(path, nodes=3).causes == {"no run_stop": 1}


@pytest.mark.parametrize(
    ("elapsed", "nodes", "readable"), [(1e10, 10**7, True), (1.01e10, 1, False), (1, 10**7 + 1, False)]
)
def test_the_longest_and_largest_job(tmp_path: Path, elapsed: float, nodes: int, readable: bool) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [_job("COMPLETED", elapsed, nodes), _job("COMPLETED", 1, 1)]}))
    assert len(read_failure_log(path).ended_s) == 1 + readable


@pytest.mark.parametrize(("time_ms", "count"), [(9.99e14, 2), (-9.99e14, 2), (1e15, 1), (-1e15, 1)])
def test_the_latest_moment_of_an_mlperf_log(tmp_path: Path, time_ms: float, count: int) -> None:
    path = tmp_path / "log.txt"
    steps = [
        {"time_ms": one, "key": "tracked_stats", "value": {"train_step_time": 2}} for one in (1, time_ms)
    ]
    path.write_text("".join(f":::MLLOG {json.dumps(step)}\n" for step in steps))
    assert read_mlperf_steps(path, gpus=8).times_s == (2.0,) * count


@pytest.mark.parametrize(("before", "kind"), [(65_530, "mlperf"), (65_537, "none")])
def test_a_log_of_mlperf_begins_in_its_first_64_kib(tmp_path: Path, before: int, kind: str) -> None:
    path = tmp_path / "log.txt"
    events = [{"time_ms": time_ms, "key": key} for time_ms, key in ((0, "run_start"), (2000, "run_stop"))]
    path.write_text("x" * (before - 6) + "\n" + "".join(f":::MLLOG {json.dumps(one)}\n" for one in events))
    if kind == "mlperf":
        assert read_failure_log(path, nodes=2).kind == kind
    else:
        with pytest.raises(DataError):
            read_failure_log(path, nodes=2)
