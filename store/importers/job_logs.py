"""Logs of jobs: failures from Slurm's `sacct --json`, a CSV of starts and ends, or MLPerf logs; steps from MLPerf."""

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.small_file import read_small_file
from kernelcast.store.steps import FailureLog, StepTimes

MOST_BYTES = 256 << 20
_FAILED = ("NODE_FAIL", "BOOT_FAIL")
"""Slurm's states of jobs that a node ended; others are the job's own, or its user's."""
_STARTED = ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING")
_CSV = ("start", "end", "nodes", "outcome")
_OUTCOMES = {"failed": True, "ok": False}
_MLLOG = ":::MLLOG"
_WARM = 5
_S_PER_DAY = 86_400.0
_LONGEST_S, _MOST_NODES, _LATEST_MS = 1e10, 10**7, 1e15


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has ended; `cause` is empty where no failure ended it."""

    seconds: float
    nodes: int
    cause: str


def _job(seconds: float, nodes: int, cause: str) -> Job | None:
    return Job(seconds, nodes, cause) if 0 <= seconds <= _LONGEST_S and 0 <= nodes <= _MOST_NODES else None


def read_failure_log(
    path: Path,
    *,
    device_name: str = "",
    gpus_per_node: int = 8,
    nodes: int | None = None,
    reference: str = "",
) -> FailureLog:
    """Read a log of any of the three kinds; `nodes` where it has none (MLPerf). DataError where no job can be read."""
    content = read_small_file(path, where=shown_path(path), most_bytes=MOST_BYTES)
    text = content.decode("utf-8", "replace")
    kind, found = _jobs(text, path, nodes)
    jobs = [one for one in found if one is not None]
    if not jobs:
        raise DataError(f"{shown_path(path)}: none of {len(found)} jobs can be read, expected one or more")
    causes = Counter(one.cause for one in jobs if one.cause)
    return FailureLog(
        kind=kind,
        device_name=device_name,
        gpus_per_node=gpus_per_node,
        node_days=sum(one.seconds * one.nodes for one in jobs) / _S_PER_DAY,
        failures=sum(causes.values()),
        unreadable=len(found) - len(jobs),
        causes=dict(causes),
        failed_s=tuple(one.seconds * one.nodes for one in jobs if one.cause),
        ended_s=tuple(one.seconds * one.nodes for one in jobs if not one.cause),
        file_digest=sha256(content).hexdigest(),
        reference=reference,
        kernelcast_version=version("kernelcast"),
    )


def _jobs(text: str, path: Path, nodes: int | None) -> tuple[str, Sequence[Job | None]]:
    """Its kind and its jobs, None for those that cannot be read."""
    if _MLLOG in text[: 1 << 16]:
        if nodes is None:
            raise DataError(f"{shown_path(path)}: an MLPerf log names no nodes, expected --nodes")
        events = list(_events(text))
        return "mlperf", [_mlperf_job(events, nodes)]
    if text.lstrip()[:1] == "{":
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{shown_path(path)}: is not JSON ({error}), expected the output of sacct --json"
            ) from error
        if isinstance(document.get("jobs"), list):
            return "sacct", [_sacct_job(one) for one in document["jobs"] if not _goes_on(one)]
    else:
        reader = csv.DictReader(io.StringIO(text))
        try:
            if reader.fieldnames and set(_CSV) <= set(reader.fieldnames):
                return "csv", [_csv_job(row, path, reader.line_num) for row in reader]
        except csv.Error as error:
            raise DataError(
                f"{shown_path(path)}:{reader.line_num}: is not CSV ({error}), expected {', '.join(_CSV)}"
            ) from error
    raise DataError(
        f"{shown_path(path)}: is no log of jobs, expected sacct --json, an MLPerf log, or CSV of "
        f"{', '.join(_CSV)}"
    )


def _state(job: Any) -> str:
    found = job["state"]["current"]
    return str(found[0] if isinstance(found, list) else found)


def _goes_on(job: Any) -> bool:
    try:
        return _state(job) in _STARTED
    except (TypeError, LookupError):
        return False


def _sacct_job(job: Any) -> Job | None:
    try:
        state, time = _state(job), job["time"]
        elapsed, nodes = time["elapsed"], job["allocation_nodes"]
        nodes = nodes["number"] if isinstance(nodes, dict) else nodes
        return _job(float(elapsed), int(nodes), state if state in _FAILED else "")
    except (TypeError, LookupError, ValueError, OverflowError):
        return None


def _csv_job(row: Mapping[str, Any], path: Path, line: int) -> Job | None:
    outcome = (row["outcome"] or "").strip()
    if outcome and outcome not in _OUTCOMES:
        raise DataError(
            f"{shown_path(path)}:{line}: outcome is {outcome[:40]!r}, expected "
            f"{' or '.join(_OUTCOMES)} (failed: by a node)"
        )
    try:
        start, end = (datetime.fromisoformat(str(row[name])) for name in ("start", "end"))
        cause = str(row.get("cause") or "failed") if _OUTCOMES[outcome] else ""
        return _job((end - start).total_seconds(), int(row["nodes"]) or -1, cause)
    except (TypeError, LookupError, ValueError, AttributeError):
        return None


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Events of an MLPerf log; other lines are left out."""
    for line in text.splitlines():
        _, found, event = line.partition(_MLLOG)
        if found:
            try:
                value = json.loads(event)
            except (ValueError, RecursionError):
                continue
            moment = value.get("time_ms") if isinstance(value, dict) else None
            if (
                isinstance(moment, int | float)
                and abs(moment) < _LATEST_MS
                and isinstance(value.get("key"), str)
            ):
                yield value


def _unpacked(content: bytes, path: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) as file:
            found = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{shown_path(path)}: is damaged ({error}), expected a gzip file") from error
    if len(found) > MOST_BYTES:
        raise DataError(f"{shown_path(path)}: is too large, expected at most {MOST_BYTES} bytes")
    return found


def _mlperf_job(events: Sequence[Mapping[str, Any]], nodes: int) -> Job | None:
    if len(events) < 2:
        return None
    seconds = (events[-1]["time_ms"] - events[0]["time_ms"]) / 1000
    stops = [one for one in events if one.get("key") == "run_stop"]
    metadata = stops[-1].get("metadata") if stops else None
    status = metadata.get("status") if isinstance(metadata, dict) else None
    # A run that did not converge has ended by itself; one without an end was cut off.
    return _job(seconds, nodes, "" if status in ("success", "aborted") else "no run_stop")


def read_mlperf_steps(
    path: Path, *, gpus: int, device_name: str = "", licence: str = "", reference: str = ""
) -> StepTimes:
    """Single steps of an MLPerf log: its `train_step_time`, without the first five; DataError without any."""
    content = read_small_file(path, where=shown_path(path), most_bytes=MOST_BYTES)
    if content[:2] == b"\x1f\x8b":
        content = _unpacked(content, path)
    events = list(_events(content.decode("utf-8", "replace")))
    if not events:
        raise DataError(f"{shown_path(path)}: no {_MLLOG} line can be read, expected an MLPerf log")
    value = {one.get("key"): one.get("value") for one in events}
    tracked = [
        one for one in events if one.get("key") == "tracked_stats" and isinstance(one.get("value"), dict)
    ]
    found = [one["value"].get("train_step_time") for one in tracked]
    times = [float(one) for one in found if isinstance(one, int | float) and 0 < one < _LONGEST_S]
    steady = times[_WARM:] or times
    if not steady:
        raise DataError(
            f"{shown_path(path)}: has no train_step_time, expected a log with times of single steps"
        )
    moments = {one.get("key"): one["time_ms"] / 1000 for one in reversed(events)}
    begin, run = events[0]["time_ms"] / 1000, moments.get("run_start")
    batch = value.get("global_batch_size")
    return StepTimes(
        publisher=str(value.get("submission_org") or ""),
        model_name=str(value.get("submission_benchmark") or ""),
        device_name=device_name,
        gpus=gpus,
        samples_per_step=batch if isinstance(batch, int) and 0 < batch < _LATEST_MS else None,
        times_s=tuple(steady),
        start_s=None if run is None else run - begin,
        total_s=events[-1]["time_ms"] / 1000 - begin,
        file_digest=sha256(content).hexdigest(),
        licence=licence,
        reference=reference,
        kernelcast_version=version("kernelcast"),
    )
