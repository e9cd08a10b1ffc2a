"""Logs of jobs: what counts as a failure, what cannot be read, and that they are facts like others."""

import gzip
import json
from pathlib import Path

import pytest

from kernelcast.runtime import DataError
from kernelcast.store import Database
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
        _job(["RUNNING"], 10, 1),
        {"state": {}},
    ]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    return path


def test_nodes_failures_count_and_nothing_else(sacct: Path) -> None:
    found = read_failure_log(sacct)
    assert (found.kind, found.failures, found.unreadable) == ("sacct", 2, 1)
    assert found.node_days == pytest.approx(4 + 4 + 1)
    assert found.causes == {"NODE_FAIL": 1, "BOOT_FAIL": 1}
    assert found.failed_s == (345_600, 0)


def test_csv_of_starts_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "start,end,nodes,outcome,cause\n"
        "2026-01-01T00:00,2026-01-02T00:00,2,failed,switch\n"
        "2026-01-02T00:00,2026-01-03T00:00,2,ok,\n"
        "2026-01-02T00:00:00,2026-01-02T00:00:00.5,2,failed,\n"
        "2026-01-02,yesterday,2,ok,\n"
        "2026-01-03T00:00,2026-01-02T00:00,2,ok,\n"
    )
    found = read_failure_log(path, gpus_per_node=4)
    assert (found.kind, found.causes, found.unreadable) == ("csv", {"switch": 1, "failed": 1}, 2)
    assert found.node_days == pytest.approx(4 + 2 * 0.5 / 86_400, rel=1e-9)


@pytest.mark.parametrize(
    "content", ["", "a,b\n1,2\n", "{", '{"jobs": 1}', "{}", '{"jobs": [{}]}', "[" * 100_000]
)
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
