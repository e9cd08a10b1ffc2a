"""Traces with one odd value in them: read without it, or refused in a line that names the file."""

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from kernelcast.collector.ingest import ingest_traces
from kernelcast.runtime.errors import KernelcastError
from kernelcast.store import check_database

FileMaker = Callable[..., Path]
HUGE = 10**400
DEVICE = {"id": 0, "name": "Example GPU", "totalGlobalMem": 80 * 2**30, "numSms": 132}
ODD = ["x", {}, -1, HUGE, -1e308]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "bench.db"


@pytest.mark.parametrize(
    ("fields", "device"),
    [
        ({"deviceProperties": [DEVICE | {"id": []}]}, "Example GPU, 80 GiB"),
        ({"deviceProperties": [DEVICE | {"id": {}}, DEVICE]}, "Example GPU, 80 GiB"),
        ({"deviceProperties": [DEVICE | {"totalGlobalMem": 10**38}]}, "Example GPU"),
        ({"deviceProperties": [DEVICE | {"totalGlobalMem": HUGE}]}, "Example GPU"),
        ({"deviceProperties": [DEVICE | {"numSms": 2**64}]}, "Example GPU, 80 GiB"),
        ({"distributedInfo": {"backend": "nccl", "rank": 2**64, "world_size": 2**64}}, "Example GPU, 80 GiB"),
        ({"baseTimeNanoseconds": HUGE}, "Example GPU, 80 GiB"),
    ],
)
def test_what_cannot_be_of_a_machine_counts_as_not_written(
    make_file: FileMaker, db: Path, fields: dict[str, Any], device: str
) -> None:
    [one] = ingest_traces([make_file("odd.json", **fields)], db)
    assert one.device == device
    assert one.samples
    assert check_database(db) == []


def test_events_of_mtia_are_kernels(make_file: FileMaker, db: Path, step: Any) -> None:
    for event in step.events:
        if event["cat"] == "kernel":
            event["cat"] = "mtia_ccp_events"
    [one] = ingest_traces([make_file("mtia.json", events=step.events)], db)
    assert one.trace is not None
    assert (one.trace.kernel_count, one.notes) == (16, ())


def test_what_is_not_read_is_named_where_nothing_else_is(make_file: FileMaker, db: Path, step: Any) -> None:
    for event in step.events:
        if event["cat"] == "kernel":
            event["cat"] = "npu_events"
    with pytest.raises(
        KernelcastError,
        match="json: 16 events of a kind that is not read: npu_events; all others are of the host; expected",
    ):
        ingest_traces([make_file("npu.json", events=step.events)], db)


def test_a_stream_beyond_64_bits_is_the_threads(make_file: FileMaker, db: Path, step: Any) -> None:
    for event in step.events:
        if event["cat"] == "kernel":
            event["args"]["stream"] = 2**64
    [one] = ingest_traces([make_file("odd.json", events=step.events)], db)
    assert {kernel.stream for s in one.samples for r in s.repetitions for kernel in r.kernels} == {7, 20}


@pytest.mark.parametrize(
    "changes", [{"ts": -1e308}, {"ts": 9.3e18}, {"ts": HUGE}, {"dur": 1e308}, {"dur": -1e308}, {"dur": HUGE}]
)
def test_an_event_with_a_damaged_time_is_left_out_and_said(
    make_file: FileMaker, db: Path, step: Any, changes: dict[str, Any]
) -> None:
    next(event for event in step.events if event["name"] == "aten::gelu").update(changes)
    [one] = ingest_traces([make_file("odd.json", events=step.events)], db)
    [note] = one.notes
    assert note.startswith(
        "event without a time that can belong to the trace left out, the first 'aten::gelu'"
    )
    assert one.trace is not None
    assert one.trace.kernel_count == 16


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a document."""
    items = list(
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [place for key, inner in items for place in [(*path, key), *places(inner, (*path, key))]]


@pytest.mark.parametrize(
    "values", [ODD, *(pytest.param([odd], marks=pytest.mark.slow, id=f"{odd!r:.12}") for odd in ODD)]
)
def test_one_odd_value_anywhere_is_read_or_refused_by_the_files_name(
    make_file: FileMaker, db: Path, values: list[Any]
) -> None:
    # The places take turns with the values; every value in every place is slow.
    path = make_file("odd.json")
    text = path.read_text()
    document = json.loads(text)
    # Of repeated entries the first one stands for all: a device, and per kind of event one.
    kinds: dict[tuple[str, bool], int] = {}
    for index, event in enumerate(document["traceEvents"]):
        kinds.setdefault((event["cat"], "Collective name" in event["args"]), index)
    document["deviceProperties"] = document["deviceProperties"][:1]
    document["traceEvents"] = [document["traceEvents"][index] for index in kinds.values()]
    for place, odd in zip(places(document), cycle(values), strict=False):
        inner = changed = json.loads(json.dumps(document))
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = odd
        path.write_text(json.dumps(changed))
        refusal = ""
        try:
            ingest_traces([path], db)
        except KernelcastError as error:
            refusal = str(error)
        assert refusal == "" or refusal.startswith(f"{path}: "), place
        assert "\n" not in refusal
