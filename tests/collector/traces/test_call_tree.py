"""The tree of host calls: nesting, self times, launches, and forward calls of backward nodes."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.collector.traces.call_tree import NODE_PREFIX, CallTree
from kernelcast.collector.traces.kineto import Trace, parse_trace, read_trace

MAIN, OTHER = "1/1", "1/2"


def event(
    name: str, start_us: float, time_us: float, *, cat: str = "cpu_op", tid: int = 1, **args: Any
) -> Any:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start_us,
        "dur": time_us,
        "args": args,
    }


def trace_of(*events: dict[str, Any]) -> Trace:
    return parse_trace(json.dumps({"traceEvents": events}).encode(), Path("made.json"))


def test_self_times_are_without_nested_operators(traces: Path) -> None:
    tree = CallTree(read_trace(traces / "cpu.json"))
    own_us = {event.name: us for event, us in zip(tree.calls, tree.self_times_us, strict=True)}
    assert own_us == {
        "aten::linear": 9.5,  # 60 − 0.5 − 50
        "aten::t": 0.5,
        "aten::addmm": 42,
        "aten::copy_": 8,
        "aten::background": 30,  # another thread: neither inside addmm nor taken off it
        "aten::relu": 0.5,
        "aten::clamp_min": 9.5,
        "aten::fill_": pytest.approx(0.55),
        "aten::empty": 0.25,
        "aten::outside": 50,
    }


def test_annotations_nest_with_calls_where_they_are_asked_for() -> None:
    mark = event("mine.layer", 0, 100, cat="user_annotation")
    trace = trace_of(mark, event("others", 1, 90, cat="user_annotation"), event("aten::mm", 5, 10))
    assert CallTree(trace).parents == [None]
    tree = CallTree(trace, annotations=("mine.",))
    assert [call.name for call in tree.calls] == ["mine.layer", "aten::mm"]
    assert tree.parents == [None, 0]
    assert list(tree.slices(MAIN)) == [(0, 0, 5), (1, 5, 15), (0, 15, 100)]
    assert list(tree.slices(OTHER)) == []


CALLS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.sampled_from([1, 2])), max_size=12)


@given(CALLS)
def test_slices_cover_a_threads_calls_once(calls: list[tuple[int, int, int]]) -> None:
    tree = CallTree(trace_of(*(event("op", start, length, tid=tid) for start, length, tid in calls)))
    for thread, tid in ((MAIN, 1), (OTHER, 2)):
        slices = list(tree.slices(thread))
        covered = [moment for _, start, end in slices for moment in range(int(start), int(end))]
        assert covered == sorted(
            {m for start, n, own in calls if own == tid for m in range(start, start + n)}
        )
        for index, start_us, end_us in slices:
            assert tree.threads[index] == thread
            assert tree.calls[index].start_us <= start_us < end_us <= tree.calls[index].end_us


def launched_by(*events: dict[str, Any], start_us: float, **args: Any) -> str | None:
    """The name of the call that launched a kernel at `start_us`."""
    launch = event("cudaLaunchKernel", start_us, 5, cat="cuda_runtime", correlation=7)
    trace = trace_of(*events, launch, event("gemm", 500, 10, cat="kernel", tid=9, correlation=7, **args))
    tree = CallTree(trace)
    (index,) = tree.launching(trace.of_category("kernel")).tolist()
    return None if index < 0 else tree.calls[index].name


OUTER, INNER = event("outer", 0, 100, **{"External id": 1}), event("inner", 10, 20, **{"External id": 2})


@pytest.mark.parametrize(
    ("start_us", "args", "expected"),
    [
        (15, {}, "inner"),
        (10, {}, "inner"),  # both start together: whole microseconds
        (30, {}, "inner"),  # ends as the launch starts
        (31, {}, "outer"),
        (101, {}, None),
        (15, {"External id": 1}, "outer"),
        (101, {"External id": 1}, None),  # the call was over
        (15, {"External id": 7}, "inner"),  # the correlation id again
    ],
)
def test_the_call_that_launched_a_kernel(start_us: float, args: dict[str, int], expected: str | None) -> None:
    assert launched_by(OUTER, INNER, event("elsewhere", 0, 200, tid=2), start_us=start_us, **args) == expected


def numbered(name: str, start_us: float, number: int, tid: int = 1) -> dict[str, Any]:
    return event(name, start_us, 2, tid=tid, **{"Sequence number": number})


def test_the_forward_call_of_a_node_has_its_number_and_its_name() -> None:
    node = f"{NODE_PREFIX}AddmmBackward0"
    tree = CallTree(
        trace_of(
            numbered("aten::linear", 0, 4),
            numbered("aten::addmm", 10, 4),
            numbered("aten::as_strided", 20, 4),
            numbered("aten::addmm", 30, 5),
            numbered(node, 40, 4),
            numbered("AddmmBackward0", 45, 4),
            numbered(node, 50, 6),
            numbered("aten::addmm", 60, 4),  # numbers restart
            numbered(node, 70, 4, tid=2),
            numbered("aten::addmm", 80, 4),
        )
    )
    starts = [
        index if index is None else tree.calls[index].start_us for index in map(tree.forward_of, (4, 6, 8))
    ]
    assert starts == [10, None, 60]
    assert tree.forward_of(4, thread=MAIN) == 2
    assert tree.forward_of(4, thread=OTHER) is None
    assert tree.backward_nodes == [None] * 4 + [
        4,
        5,
        6,
        None,
        8,
        None,
    ]  # a node without the engine is one too


@pytest.mark.parametrize(
    "make",
    [
        lambda i, n: event("aten::mm", i, 2 * n - 2 * i),  # each inside the one before
        lambda i, n: numbered(
            f"{NODE_PREFIX}MmBackward0" if i % 2 else "aten::add", i, 3
        ),  # one number for all
    ],
    ids=["deep", "one number"],
)
def test_time_is_linear_in_events(make: Callable[[int, int], dict[str, Any]]) -> None:
    n = 20_000
    launches = [event("cudaLaunchKernel", 2 * n + i, 1, cat="cuda_runtime", correlation=i) for i in range(n)]
    trace = trace_of(*(make(i, n) for i in range(n)), *launches)
    start_s = time.process_time()
    tree = CallTree(trace)
    assert len(tree.launches) == n
    assert len(list(tree.slices(MAIN))) >= n - 1
    for index in range(n):
        tree.forward_of(index)
    assert len(tree.backward_nodes) == n
    assert time.process_time() - start_s < 5  # with scans of all candidates: minutes
