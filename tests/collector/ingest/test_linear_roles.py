"""Lines of Python run for a trace grow as its events do, however deep calls nest: counted, not timed."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kernelcast.collector.ingest.attribute_kernels import extract
from kernelcast.collector.traces.call_tree import NODE_PREFIX

Events = list[dict[str, Any]]


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of this package a call runs."""
    count = 0

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith("kernelcast."):
            return None
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def event(cat: str, name: str, start_us: float, time_us: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    times = {"ts": start_us, "dur": time_us}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args}


def deep(n: int, name: Callable[[int], str], kernel: str, **numbers: int) -> Events:
    """Nested calls that each launch a kernel; `numbers` belong to the outermost call."""
    events: Events = []
    for i in range(n):
        arguments = {name.replace("_", " "): number for name, number in numbers.items()} if i == 0 else {}
        events += [
            event("cpu_op", name(i), 4 * n + i, 2 * (n - i) + 0.5, 2, **arguments),
            event("cuda_runtime", "cudaLaunchKernel", 4 * n + i + 0.1, 0.2, 2, correlation=i),
            event("kernel", kernel, 10 * n + i, 1, 7, correlation=i, stream=7, device=0),
        ]
    return events


def collectives(n: int) -> Events:
    """Kernels of collectives that only annotations describe, deep inside of calls that are none of c10d's."""
    marks = [event("user_annotation", "nccl:all_reduce", 4 * n + i + 0.05, 0.2, 2) for i in range(n)]
    return deep(n, lambda i: "aten::x", "ncclDevKernel_AllReduce") + marks


def grouped_gradients(n: int) -> Events:
    """Kernels deep inside of the backward node of a grouped product."""
    numbers = {"Sequence number": 1, "Input Dims": [[8, 4], [2, 4, 4]], "Input type": ["float", "float"]}
    forward = event("cpu_op", "aten::_grouped_mm", 0, 1, **numbers)
    nodes = deep(
        n, lambda i: "aten::y" if i else f"{NODE_PREFIX}GroupedMmBackward0", "gemm", Sequence_number=1
    )
    return [forward, *nodes]


def nodes(n: int) -> Events:
    """Nodes of autograd inside each other, all with the number of n forward calls."""
    forward = [event("cpu_op", f"aten::mm{i}", i, 0.5, **{"Sequence number": 3}) for i in range(n)]
    inside = deep(n, lambda i: f"{NODE_PREFIX}Mm{i}Backward0", "gemm")
    for one in inside:
        if one["cat"] == "cpu_op":
            one["args"] = {"Sequence number": 3}
    return forward + inside


@pytest.mark.parametrize("make", [collectives, grouped_gradients, nodes])
def test_twice_the_events_take_twice_the_work(make: Callable[[int], Events], make_trace: Any) -> None:
    once, twice = (make_trace(make(n)) for n in (200, 400))
    counts = [lines_run(lambda trace=trace: extract(trace, 8)) for trace in (once, twice)]
    assert counts[0] > 1000
    assert counts[1] < 2.1 * counts[0]
