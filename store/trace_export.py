"""Writing stored traces, whole or one step, as Chrome traces, which ui.perfetto.dev and `ingest` read.

Of the host they hold only stored facts: steps, launches and launching calls, without durations. Next to each stream is
a track with the names of its operators, roles and collectives.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.output_file import write_pieces
from kernelcast.store.database import Database

_HOST = 1_000_000  # process of the host's events; device numbers are smaller
_NAMES = 1_000_000_000  # from a stream to the track of its operators; viewers read 32 bits
_TRACES = """
    SELECT trace.id, timeline.number, trace.rank, trace.world_size, trace.backend, hardware.device_name, hardware.kind,
        hardware.memory_gib, hardware.multiprocessors, hardware.compute_capability
    FROM trace JOIN timeline ON timeline.trace_id = trace.id JOIN run ON run.id = trace.run_id
    JOIN hardware ON hardware.id = run.compute_id WHERE trace.run_id = ? ORDER BY trace.rank, trace.id
"""
_ARGUMENTS = {
    "host_operator": "Host operator", "shapes": "Input Dims", "scope": "Scope", "direction": "Direction",
    "collective": "Collective name", "group_ranks": "Process Group Ranks", "group_size": "Group size", "dtype": "dtype",
}  # fmt: skip


def write_trace(
    database: Database, run_id: str, target: Path, *, rank: int | None = None, step: str = ""
) -> int:
    """Write one rank of a run, whole or one step; returns the number of events. `rank` may be None if there is one.

    DataError without such a rank or step, for several ranks without `rank`, or where the file cannot be written.
    """
    traces = [row for row in database.query(_TRACES, [run_id]) if rank is None or row["rank"] == rank]
    if len(traces) != 1:
        ranks = ", ".join(str(row["rank"]) for row in database.query(_TRACES, [run_id]))
        raise DataError(
            f"{database.path}: found {len(traces)} traces to export, expected one of ranks {ranks}"
        )
    [trace] = traces
    steps = database.query(
        "SELECT * FROM traced_step WHERE timeline_number = ? ORDER BY step", [trace["number"]]
    )
    chosen = [row for row in steps if step in ("", row["name"], row["name"].rpartition("#")[2])]
    if step and not chosen:
        names = ", ".join(row["name"] for row in steps) or "none"
        raise DataError(f"{database.path}: found no step {step!r}, expected one of {names}")
    written = 0

    def lines() -> Iterator[str]:
        nonlocal written
        yield json_text(_head(trace))[:-1] + ', "traceEvents": [\n'
        for event in _events(database, trace, chosen, is_all=not step):
            yield (",\n" if written else "") + json_text(event)
            written += 1
        yield "\n]}\n"

    write_pieces(target, lines())
    return written


def _head(trace: Mapping[str, Any]) -> dict[str, Any]:
    major, _, minor = trace["compute_capability"].partition(".")
    device = {
        "name": trace["device_name"],
        "totalGlobalMem": trace["memory_gib"] << 30,
        "numSms": trace["multiprocessors"],
    }
    if minor:
        device |= {"computeMajor": int(major), "computeMinor": int(minor)}
    info = {"backend": trace["backend"], "rank": trace["rank"], "world_size": trace["world_size"]}
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "deviceProperties": [] if trace["kind"] == "cpu" else [device],
        "distributedInfo": {name: value for name, value in info.items() if value not in (None, "")},
    }


def _events(
    database: Database, trace: Mapping[str, Any], steps: list[dict[str, Any]], *, is_all: bool
) -> Iterator[dict[str, Any]]:
    yield _name("process_name", "host: steps and launches", _HOST, 1)
    for step in steps:
        yield _event("user_annotation", step["name"], step["start_ns"], step["duration_ns"], _HOST, 1, {})
    wanted = (
        "1" if is_all else f"traced_event.step IN ({', '.join(str(int(step['step'])) for step in steps)})"
    )
    cursor = database.connection.execute(
        "SELECT event_kind.*, traced_event.*, event_scope.name FROM traced_event"
        " JOIN event_kind ON event_kind.number = kind_number LEFT JOIN event_scope ON event_scope.number = scope_number"
        f" WHERE timeline_number = ? AND {wanted} ORDER BY sequence",
        (trace["number"],),
    )
    names = [column[0] for column in cursor.description]
    names[-1] = "scope"
    calls: set[int] = set()
    streams: set[tuple[int, int]] = set()
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        arguments = {text: row[name] for name, text in _ARGUMENTS.items() if row[name] not in ("", None)}
        if "Input Dims" in arguments:
            arguments["Input Dims"] = json.loads(arguments["Input Dims"])
        arguments |= {"device": row["device"], "stream": row["stream"]}
        if row["correlation"] is not None:
            arguments["correlation"] = row["correlation"]
            if row["launch_ns"] is not None:
                launch = {"correlation": row["correlation"]}
                if row["call"] is not None and row["call"] not in calls:
                    calls.add(row["call"])
                    dims = {name: arguments[name] for name in ("Input Dims",) if name in arguments}
                    yield _event("cpu_op", row["host_operator"], row["launch_ns"], 0, _HOST, 1, dims)
                yield _event("cuda_runtime", "launch", row["launch_ns"], 0, _HOST, 1, launch)
        device, stream = place = row["device"], row["stream"]
        if place not in streams:
            streams.add(place)
            yield _name("thread_name", f"stream {stream}", device, stream)
            yield _name("thread_name", f"stream {stream}: operators and collectives", device, stream + _NAMES)
        times = row["start_ns"], row["duration_ns"]
        yield _event(row["category"], row["name"], *times, *place, arguments)
        if called := f"{row['operator']} {row['role']}".strip() or row["collective"]:
            named = f"{called} ({row['direction']})" if row["direction"] not in ("", "once") else called
            yield _event("gpu_user_annotation", named, *times, device, stream + _NAMES, {})


def _name(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    """What a viewer calls a process or a track."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _event(
    category: str, name: str, start_ns: int, duration_ns: int, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_ns / 1e3,
            "dur": duration_ns / 1e3, "args": args}  # fmt: skip
