"""Steps of traces that mark none: made-up ones whose launches repeat or do not, and real ones without their marks."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.store.trace_report import trace_report, traced_runs
from tests.collector.ingest.conftest import Step

SHARED = Path(__file__).parents[3].parent / "shared/data/traces"
LAYER = ("norm", "gemm_qkv", "flash", "gemm_out", "gemm_up", "gelu", "gemm_down")


def launched(kernels: list[str]) -> list[dict[str, Any]]:
    step = Step()
    for name in kernels:
        step.call("aten::mm", kernels=((name, 10.0),))
        step.device_us = max(step.device_us, step.host_us)
    return step.events


def steps_and_notes(path: Path) -> tuple[list[tuple[str, float, int]], list[str]]:
    notes: list[str] = []
    with opened_traces([path], notes=notes) as database:
        [run] = traced_runs(database)
        rows = trace_report(database, run).steps
    return [(row["step"], row["device_ms"], row["events"]) for row in rows], notes


def training(layers: int) -> list[str]:
    forward = ["gather", *LAYER * layers, "logits", "loss"]
    return [*forward, *(f"{name}_backward" for name in reversed(forward)), "clip", "adam"]


@pytest.mark.parametrize(
    ("skipped", "expected"),
    [(0, ["repetition 1", "repetition 2", "repetition 3"]),
     (100, ["repetition 1", "repetition 2", "repetition 3 (cut)"])],
)  # fmt: skip
def test_steps_are_repetitions_of_all_launches_not_of_layers(
    make_file: Callable[..., Path], tmp_path: Path, skipped: int, expected: list[str]
) -> None:
    one = training(24)
    steps, notes = steps_and_notes(make_file("t.json", events=launched((one * 3)[skipped:])))
    assert [name for name, *_ in steps] == expected
    with opened_traces([tmp_path / "t.json"]) as database:  # what the file holds, without the marks
        assert database.query("SELECT event_count FROM trace") == [
            {"event_count": 3 * (3 * len(one) - skipped)}
        ]
    assert [count for *_, count in steps] == [len(one)] * 2 + [len(one) - skipped]
    repeated = 3 - bool(skipped)
    assert notes == [
        f"t.json: no steps are marked: its launches repeat every {len(one)} kernels, and {repeated} repetitions "
        "count as steps"
    ]


@pytest.mark.parametrize(
    "kernels",
    [
        ["gather", *LAYER * 24, "logits"],  # one forward pass of many layers
        training(2),
        ["gemm"] * 200,
        ["gemm", "add"] * 100,
        [*LAYER, *LAYER],  # fewer than twenty launches each
        [*training(2), "other", "others", *training(2)],
        [f"{name}_{place % 7}" for place, name in enumerate(training(3) * 2)],  # other kernels each time
    ],
    ids=["forward", "one step", "one kernel", "two kernels", "few", "other work between", "other kernels"],
)
def test_launches_that_do_not_repeat_are_no_steps(make_file: Callable[..., Path], kernels: list[str]) -> None:
    steps, notes = steps_and_notes(make_file("t.json", events=launched(kernels)))
    assert [name for name, *_ in steps] == [None]
    assert notes == []


def test_marked_steps_are_as_marked(make_file: Callable[..., Path]) -> None:
    events = launched(training(4) * 3)
    end = max(event["ts"] for event in events)
    events.append(
        events[0] | {"cat": "user_annotation", "name": "step 7", "ts": 999.0, "dur": end, "args": {}}
    )
    steps, notes = steps_and_notes(make_file("t.json", events=events))
    assert [name for name, *_ in steps] == ["step 7"]
    assert notes == []


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data/traces next to the checkout")
@pytest.mark.parametrize("name", ["control", "nccl_data", "rank-0.Apr", "test", "worker0"])
def test_real_steps_are_found_without_their_marks(tmp_path: Path, name: str) -> None:
    [path] = SHARED.glob(f"*/{name}*.json.gz")
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["traceEvents"] = [
        event for event in content["traceEvents"] if not str(event.get("name")).startswith("ProfilerStep")
    ]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(content))
    [found, notes], [marked, _] = steps_and_notes(bare), steps_and_notes(path)
    assert [step[1:] for step in found] == [step[1:] for step in marked]
    assert len(notes) == 1
