"""Reading traces, by chance: what is written comes back, and no cut or changed file gives a traceback."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.collector.ingest.attribute_kernels import extract
from kernelcast.collector.traces.kineto import Trace, parse_trace, read_trace
from kernelcast.runtime import DataError

PATH = Path("made.json")
NUMBERS = st.integers(-(2**40), 2**50) | st.floats(-1e12, 1e15, allow_nan=False)
# `content` makes numbers of the words NaN and Infinity, in texts too.
TEXTS = (st.text(max_size=8)).filter(lambda text: "NaN" not in text and "Infinity" not in text)
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "user_annotation", "python_function"]),
        "name": TEXTS | st.sampled_from(["aten::mm", "aten::gelu", "autograd::engine::evaluate_function: X"]),
        "pid": st.integers(0, 9) | TEXTS,
        "tid": st.integers(0, 9) | TEXTS,
        "ts": st.integers(0, 10**8) | st.floats(0, 1e8, allow_nan=False),
        "dur": st.floats(0, 6e7, allow_nan=False) | st.integers(0, 6 * 10**7),
        "args": st.dictionaries(
            TEXTS
            | st.sampled_from(["correlation", "External id", "Sequence number", "Input Dims", "Input type"]),
            ODD,
            max_size=4,
        ),
    }
)
# So near in time that none rules out another (test_impossible_times.py).
NEAR = EVENTS.map(lambda event: event | {"ts": event["ts"] % 5e3, "dur": event["dur"] % 1e3})
OTHER_EVENTS = st.fixed_dictionaries({"ph": st.sampled_from("MifsC"), "name": TEXTS, "ts": NUMBERS})


def content(events: list[dict[str, Any]]) -> bytes:
    return json.dumps({"traceEvents": events}).replace("NaN", "0").replace("Infinity", "1").encode()


def read_or_refused(path: Path, read: Callable[[], Trace]) -> None:
    refusal = ""
    try:
        extract(read(), gpus_per_node=0)
    except DataError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert refusal == "" or refusal.startswith(f"{path}: ")


@settings(max_examples=60, deadline=None)
@given(st.lists(NEAR, max_size=8), st.lists(OTHER_EVENTS, max_size=3))
def test_events_come_back(events: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    trace = parse_trace(content([*others, *events]), PATH)
    assert sorted((e.name, e.category, e.thread, e.start_us, e.duration_us) for e in trace.events) == sorted(
        (e["name"], e["cat"], f"{e['pid']}/{e['tid']}", float(e["ts"]), float(e["dur"])) for e in events
    )
    starts = [event.start_us for event in trace.events]
    assert starts == sorted(starts)
    extracted = extract(trace, gpus_per_node=8)  # whatever the arguments are
    kept = extracted.recognised_count + sum(count for count, _ in extracted.left.values())
    assert kept == extracted.count


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_a_cut_or_changed_file_is_read_or_refused_in_one_line(
    tmp_path: Path, events: list[dict[str, Any]], data: st.DataObject
) -> None:
    whole = content(events)
    if data.draw(st.booleans(), label="packed"):
        whole = gzip.compress(whole)
    if data.draw(st.booleans(), label="cut"):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    path = tmp_path / "damaged.json"
    path.write_bytes(damaged)
    read_or_refused(path, lambda: read_trace(path))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        ODD | EVENTS | st.dictionaries(st.sampled_from(["ph", "ts", "dur", "args", "pid"]), ODD), max_size=4
    )
)
def test_events_of_any_shape_are_read_or_refused_in_one_line(events: list[Any]) -> None:
    read_or_refused(PATH, lambda: parse_trace(content(events), PATH))


@pytest.mark.parametrize("unit", ["ms", "ns", None])
def test_time_stamps_are_microseconds_whatever_is_displayed(unit: str | None) -> None:
    event = {"ph": "X", "name": "gemm", "ts": 1_712_195_495_519_689.125, "dur": 63.813}
    trace = parse_trace(json.dumps({"traceEvents": [event], "displayTimeUnit": unit}).encode(), PATH)
    assert (trace.events[0].start_us, trace.events[0].duration_us) == (1_712_195_495_519_689.125, 63.813)


def test_unix_time_in_nanoseconds_is_brought_to_microseconds() -> None:
    events = [
        {"ph": "X", "name": "gemm", "ts": 1_712_195_495_519_689_000 + i, "dur": 63_813} for i in range(2)
    ]
    trace = parse_trace(json.dumps({"traceEvents": events}).encode(), PATH)
    assert isinstance(trace, Trace)
    assert trace.events[0].start_us == pytest.approx(1_712_195_495_519_689.0)
    assert trace.events[0].duration_us == 63.813
