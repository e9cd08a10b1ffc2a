"""Which kernels belong to a mark, on hand-written traces of a CPU and of a GPU."""

import json
from pathlib import Path

import pytest

from kernelcast.collector.traces.attribution import attribute
from kernelcast.collector.traces.kineto import read_trace


def test_work_of_a_cpu(traces: Path) -> None:
    forward, backward = attribute(read_trace(traces / "cpu.json"), "kernelcast.")
    # The second forward mark holds nothing and is left out.
    assert forward.mark == "kernelcast.forward#0"
    assert (forward.start_us, forward.end_us, forward.time_us) == (105, 180, 75)
    # Dispatch below 1 µs is no kernel; the time of the span holds it all the same.
    assert [(k.name, k.start_us, k.duration_us) for k in forward.kernels] == [
        ("aten::linear", 105, 9.5),
        ("aten::addmm", 110, 42),
        ("aten::copy_", 112, 8),
        ("aten::background", 120, 30),
        ("aten::clamp_min", 170.25, 9.5),
    ]
    # A call with nothing as long as 1 µs is its longest operator.
    assert backward.mark == "kernelcast.backward#0"
    assert [k.name for k in backward.kernels] == ["aten::fill_"]
    assert backward.time_us == pytest.approx(0.8)


def test_work_of_a_gpu(traces: Path) -> None:
    forward, backward = attribute(read_trace(traces / "cuda.json"), "kernelcast.")
    # By launch: the tail runs on long after its mark, and into the next one. What the trace cannot tie to a launch
    # under a mark belongs to none.
    assert forward.mark == "kernelcast.forward#0"
    assert [k.name for k in forward.kernels] == ["gemm_forward", "Memcpy HtoD", "slow_tail"]
    assert (forward.start_us, forward.end_us, forward.time_us) == (1015, 1310, 295)
    # Launched by autograd's own thread.
    assert backward.mark == "kernelcast.backward#0"
    assert [k.name for k in backward.kernels] == ["gemm_backward"]
    assert (backward.start_us, backward.time_us) == (1320, 40)


def test_only_marks_with_the_prefix(traces: Path) -> None:
    trace = read_trace(traces / "cuda.json")
    assert [work.mark for work in attribute(trace, "kernelcast.backward")] == ["kernelcast.backward#0"]
    assert attribute(trace, "other.") == []


def test_a_collective_on_gloos_thread_is_part_of_its_mark(tmp_path: Path) -> None:
    events = [
        {"cat": "user_annotation", "name": "kernelcast.comm#0", "tid": 1, "ts": 100, "dur": 80},
        {"cat": "cpu_op", "name": "c10d::allreduce_", "tid": 1, "ts": 105, "dur": 10},
        {"cat": "user_annotation", "name": "gloo:all_reduce", "tid": 2, "ts": 110, "dur": 60},
        # Its barrier began before the mark.
        {"cat": "user_annotation", "name": "gloo:barrier", "tid": 3, "ts": 99, "dur": 3},
    ]
    path = tmp_path / "gloo.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "pid": 1, **event} for event in events]}))
    (work,) = attribute(read_trace(path), "kernelcast.comm")
    assert [k.name for k in work.kernels] == ["c10d::allreduce_", "gloo:all_reduce"]
    assert work.time_us == 65


def test_odd_correlations_tie_nothing(tmp_path: Path) -> None:
    events = [
        {"cat": "user_annotation", "name": "kernelcast.once#0", "ts": 0, "dur": 50},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "args": {"correlation": [1]}},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1},
        {"cat": "kernel", "name": "gemm", "ts": 5, "dur": 1, "args": {"correlation": [1]}},
        {"cat": "kernel", "name": "relu", "ts": 6, "dur": 1},
    ]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", **event} for event in events]}))
    assert attribute(read_trace(path), "kernelcast.") == []
