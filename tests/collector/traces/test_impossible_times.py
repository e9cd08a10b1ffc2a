"""One event with a wild time, in made-up and recorded traces: it decides no step, and a note names it."""

import gzip
import json
import random
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from kernelcast.collector.ingest import ingest_traces
from kernelcast.store import Database
from tests.collector.ingest.rank_traces import MadeRun
from tests.collector.traces.test_shared_traces import FOLDER, HTA

RECORDED = [f"{HTA}/sampled_rank-0.json.gz", f"{HTA}/nccl_data.json.gz"]
DEVICE = ("kernel", "gpu_memcpy")
STARTS_S = (1, -1, 60, -60, 1000, -1000)
SAID = "event without a time that can belong to the trace left out, the first "
Document = dict[str, Any]


def figures(document: Document, folder: Path) -> tuple[dict[str, float], tuple[str, ...]]:
    """Time of the device in every step, ms, and the notes."""
    path, database_path = folder / "trace.json", Path(mkdtemp(dir=folder), "trace.db")
    path.write_text(json.dumps(document))
    [one] = ingest_traces([path], database_path)
    with Database.open(database_path, read_only=True) as database:
        rows = database.query("SELECT step, device_ms FROM step_time WHERE step IS NOT NULL")
    return {row["step"]: row["device_ms"] for row in rows}, one.notes


def made(folder: Path) -> Document:
    path = MadeRun(ranks=2, seed=1).write(folder) / "rank001.json"
    document: Document = json.loads(path.read_text())
    return document


def events(document: Document, *categories: str, least_us: float = 0.0) -> list[Document]:
    return [
        event
        for event in document["traceEvents"]
        if event.get("cat") in categories and event.get("dur", 0) >= least_us
    ]


def expect_the_same(
    document: Document, event: Document, change: Document, folder: Path, steps: Any, *, less_ms: float = 0.0
) -> None:
    """Steps within 1 % and `less_ms`, but for one whose mark the event is, and a note of the event alone."""
    usual = dict(event)
    event.update(change)
    found, notes = figures(document, folder)
    event.update(usual)
    wanted = {step: ms for step, ms in steps.items() if step != event["name"]}
    assert {step: ms for step, ms in found.items() if step in wanted} == pytest.approx(
        wanted, rel=0.01, abs=less_ms
    )
    assert [note.startswith(f"{SAID}{event['name']!r:.60}"[:-1]) for note in notes] == [True], notes


CHANGES: list[Document] = [
    *({"ts": seconds * 1e6} for seconds in STARTS_S),
    {"dur": 100},
    {"dur": 1e4},
    {"dur": -1},
    {"dur": None},
]


def changed(event: Document, change: Document) -> Document:
    [(name, by)] = change.items()
    return {name: by if by is None else event[name] + by if name == "ts" else event[name] * by}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_one_wild_kernel_or_copy_decides_no_step(tmp_path: Path, change: Document) -> None:
    document = made(tmp_path)
    steps, notes = figures(document, tmp_path)
    assert (len(steps), notes) == (4, ())
    device = sorted(events(document, *DEVICE), key=lambda event: float(event["ts"]))
    for event in (device[0], *random.Random(2).sample(device[1:-1], 2)):
        expect_the_same(document, event, changed(event, change), tmp_path, steps)
    if "ts" in change:  # the last one may last long; without it the last step is shorter
        event = device[-1]
        expect_the_same(
            document, event, changed(event, change), tmp_path, steps, less_ms=event["dur"] / 1e3 + 0.1
        )


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/traces next to the checkout")
def test_one_wild_event_decides_no_step_of_a_recorded_trace(
    tmp_path: Path, name: str, change: Document
) -> None:
    document = json.loads(gzip.decompress((FOLDER / name).read_bytes()))
    steps, notes = figures(document, tmp_path)
    assert notes == ()
    # A hundred times a few microseconds is no more than a step's scatter.
    event = random.Random(3).choice(events(document, *DEVICE, least_us=100 if "dur" in change else 0))
    expect_the_same(document, event, changed(event, change), tmp_path, steps)


@pytest.mark.parametrize("change", [one for one in CHANGES if "ts" in one], ids=str)
@pytest.mark.parametrize("category", ["cuda_runtime", "user_annotation"])
def test_a_wild_launch_or_mark_decides_no_other_step(tmp_path: Path, category: str, change: Document) -> None:
    document = made(tmp_path)
    steps, _ = figures(document, tmp_path)
    of_host = [event for event in events(document, category) if "DataLoader" not in event["name"]]
    for event in of_host[1:3]:
        expect_the_same(document, event, changed(event, change), tmp_path, steps)


@pytest.mark.parametrize("change", [{"ts": 1e6}, {"ts": -1e6}, {"dur": 1e4}], ids=str)
def test_a_wild_call_decides_no_step(tmp_path: Path, change: Document) -> None:
    document = made(tmp_path)
    steps, _ = figures(document, tmp_path)
    mark = next(event for event in events(document, "user_annotation") if "Profiler" in event["name"])
    first, call, last = (
        {
            **mark,
            "cat": "cpu_op",
            "name": name,
            "ts": mark["ts"] + 10 * place,
            "dur": 5,
            "args": {"External id": place},
        }
        for place, name in enumerate(("aten::add", "aten::mm", "aten::add"), start=1)
    )
    document["traceEvents"] += [first, call | changed(call, change), last]
    found, notes = figures(document, tmp_path)
    assert found == steps
    assert [note.startswith(f"{SAID}'aten::mm'") for note in notes] == [True]


@pytest.mark.parametrize("ahead_us", [8e3, 60e3])
def test_a_clock_of_the_device_that_runs_ahead_is_usual(tmp_path: Path, ahead_us: float) -> None:
    document = made(tmp_path)
    for event in events(document, *DEVICE):
        event["ts"] -= ahead_us
    assert figures(document, tmp_path)[1] == ()


def test_kernels_that_run_in_parallel_on_what_is_called_a_stream_are_usual(tmp_path: Path) -> None:
    document = made(tmp_path)
    for event in events(document, *DEVICE):
        if "attention" in event["name"]:  # of another stream, during the next kernels
            event["dur"] = 3e3
    assert figures(document, tmp_path)[1] == ()


@pytest.mark.parametrize("is_other_device", [False, True])
def test_a_host_waits_for_one_device(tmp_path: Path, is_other_device: bool) -> None:
    document = made(tmp_path)
    last = max(events(document, "kernel"), key=lambda event: event["ts"])
    [launch] = [
        one
        for one in events(document, "cuda_runtime")
        if one["args"]["correlation"] == last["args"]["correlation"]
    ]
    wait = {"name": "cudaDeviceSynchronize", "args": {"correlation": 10**6}, "ts": launch["ts"] + 1}
    document["traceEvents"].append(launch | wait | {"dur": last["ts"] + last["dur"] - launch["ts"]})
    last["dur"] += 50e3
    if is_other_device:
        last |= {"pid": 7, "args": last["args"] | {"device": 7}}
    assert len(figures(document, tmp_path)[1]) == (not is_other_device)
