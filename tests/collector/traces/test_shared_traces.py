"""Traces that other projects published, where they are at hand: real ones parse, and what is none is refused."""

import re
from pathlib import Path

import pytest

from kernelcast.collector.traces.attribution import attribute
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import DEVICE_CATEGORIES
from kernelcast.collector.traces.kineto import read_trace
from kernelcast.runtime import DataError

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
HTA, TRACELENS, KINETO = "holistic-trace-analysis", "tracelens", "kineto"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/traces next to the checkout")


@pytest.mark.parametrize(
    ("name", "kernels", "device"),
    [
        (f"{HTA}/control.json.gz", 9450, "NVIDIA A100"),
        (f"{KINETO}/worker0.1623143089861.pt.trace.json.gz", 9096, "Tesla V100"),
        (f"{HTA}/nccl_data.json.gz", 3774, "NVIDIA A100"),
        (f"{HTA}/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 6095, "Tesla V100"),
        (f"{HTA}/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 0, ""),
        (f"{HTA}/rank_not_found.json.gz", 0, ""),
        (f"{HTA}/sampled_rank-0.json.gz", 1204, ""),
        (f"{HTA}/sampled_rank-1.json.gz", 1154, ""),
        (f"{HTA}/test.json.gz", 15632, "Tesla V100"),
        (f"{HTA}/triton_example.json.gz", 1, "NVIDIA A100"),
        (f"{TRACELENS}/h100_qwen1.5-0.5b_chat.json.gz", 1707, "NVIDIA H100"),
        (f"{TRACELENS}/mi210_gpu_only.json.gz", 562, "AMD Instinct MI210"),
    ],
)
def test_kineto_traces_parse(name: str, kernels: int, device: str) -> None:
    trace = read_trace(FOLDER / name)
    on_device = trace.of_category(*DEVICE_CATEGORIES)
    assert len(on_device) == kernels
    if device:
        assert trace.device_properties[0]["name"].startswith(device)
    tree = CallTree(trace)
    assert all(us > -1 for us in tree.self_times_us)  # ends are rounded
    assert (
        sum(tree.launch_of(on_device) >= 0) >= 0.7 * kernels
    )  # some were launched before the recording began


def test_a_real_step_holds_its_kernels() -> None:
    trace = read_trace(FOLDER / HTA / "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")
    steps = attribute(trace, "ProfilerStep#")
    assert steps
    for step in steps:
        assert re.fullmatch(r"ProfilerStep#\d+", step.mark)
        assert len(step.kernels) > 100
        assert 0 < max(kernel.duration_us for kernel in step.kernels) < step.time_us


def test_nodes_that_an_old_profiler_recorded_without_the_engine_are_backward() -> None:
    tree = CallTree(read_trace(FOLDER / KINETO / "worker0.1623143089861.pt.trace.json.gz"))
    nodes = {
        call.name: node is not None
        for call, node in zip(tree.calls, tree.backward_nodes, strict=True)
        if "cudnn_convolution" in call.name
    }
    assert nodes == {
        "aten::cudnn_convolution": False,
        "aten::cudnn_convolution_backward": True,
        "aten::cudnn_convolution_backward_input": True,
        "aten::cudnn_convolution_backward_weight": True,
    }


def test_an_execution_trace_is_refused_in_one_line() -> None:
    path = FOLDER / HTA / "not_a_kineto_trace_et.json.gz"
    with pytest.raises(DataError) as caught:
        read_trace(path)
    assert str(caught.value) == f"{path}: no list 'traceEvents' found, expected a Kineto trace"
