"""Kernels of a real traced step: each belongs to the operator that ran it, forward, backward and recomputed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelcast.collector.measuring.harness import profiled
from kernelcast.collector.traces.kineto import read_trace
from kernelcast.collector.training.groups import Shard
from kernelcast.collector.training.job import TrainingJob, Turn
from kernelcast.collector.training.job_result import JobResult
from kernelcast.collector.training.marks import BACKWARD, FORWARD, LOSS, OPERATOR, STEP, marked, marks_shown
from kernelcast.collector.training.model import Chunk
from kernelcast.collector.training.rank_trace import rank_trace
from kernelcast.collector.training.step_trace import TracedWork, attribute_step
from kernelcast.runtime import ModelConfig, Parallelism

LAYERS = 2


def traced(norm: str, recompute: str, **fields: Any) -> tuple[TracedWork, dict[str, list[object]]]:
    model = ModelConfig(
        name="tiny",
        hidden_size=32,
        sequence_length=16,
        attention_heads=4,
        layers=LAYERS,
        vocabulary_size=100,
        norm=norm,  # type: ignore[arg-type]
        **fields,
    )
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=2, micro_batches=1, recompute=recompute)  # type: ignore[arg-type]
    chunk = Chunk(TrainingJob(model=model, parallelism=layout), 0, Shard())
    for parameter in chunk.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(100, (2, 16))

    def step() -> None:
        with marked(STEP):
            with marked(FORWARD):
                logits = chunk(ids)
            with marked(LOSS):
                loss = chunk.loss(logits, ids)
            with marked(BACKWARD):
                loss.backward()  # type: ignore[no-untyped-call]

    step()
    with marks_shown():
        trace = profiled(torch.device("cpu"), step)
    return attribute_step(trace), rank_trace(trace, stage=0)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_every_operator_is_found_in_its_direction(norm: str, recompute: str) -> None:
    work, said = traced(norm, recompute)
    spans = [span for span in work.spans if span.owner.known]
    calls = {(p.owner.name, p.owner.direction, p.owner.call) for p in spans}
    found = Counter((name, direction) for name, direction, _ in calls)
    again = {
        "none": set(),
        "selective": {"flash_attention"},
        "full": {"flash_attention", "gemm/qkv", "rope"},
    }[recompute]
    for name, count in {
        "gemm/qkv": 2,
        "flash_attention": 2,
        "rope": 2,
        "gelu": 2,
        "gemm/logits": 1,
    }.items():
        twice = 2 if name in again else 1
        if not (name == "gelu" and recompute == "full"):
            assert found[name, "forward"] == twice * count, name
        assert found[name, "backward"] == count, name
    assert found["embedding", "backward"] == found["cross_entropy", "backward"] == 1
    # The stream's two gradients meet once per residual addition, whatever the norm is made of.
    adds = [p for p in spans if p.owner.name == "residual_add" and p.owner.direction == "backward"]
    assert len({p.owner.call for p in adds}) == 2 * 2 * LAYERS  # passed on, and met by the other gradient
    assert len(said["layer_forward"]) == len(said["layer_backward"]) == LAYERS


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_operators_of_experts_are_found(recompute: str) -> None:
    fields = {
        "activation": "swiglu", "biases": "none", "experts": 4, "experts_per_token": 2, "expert_size": 24,
        "shared_expert_size": 16, "sliding_window": 5, "global_interval": 2,
    }  # fmt: skip
    work, _ = traced("rms_norm", recompute, **fields)
    calls = {(p.owner.name, p.owner.direction, p.owner.call) for p in work.spans if p.owner.known}
    found = Counter((name, direction) for name, direction, _ in calls)
    for name, count in {
        "gemm/router": 2,
        "router": 2,
        "permute": 2,
        "unpermute": 2,
        "grouped_gemm/experts_gate_up": 2,
        "grouped_gemm/experts_down": 2,
        "gemm/shared_gate_up": 2,
        "swiglu": 4,
        "attention_block": 1,  # every second layer looks back to the first token
        "flash_attention": 1,
    }.items():
        assert found[name, "forward"] == count * (2 if recompute == "full" else 1), name
        assert found[name, "backward"] == count, name


def test_pieces_do_not_overlap_and_fill_the_step() -> None:
    work, said = traced("layer_norm", "none")
    (step,) = work.steps
    for before, after in zip(work.spans, work.spans[1:], strict=False):
        assert before.end_us <= after.start_us + 1e-6
    inside = [p for p in work.spans if step.start_us <= p.start_us <= step.end_us]
    idle = said["idle"]
    total = sum(p.time_us for p in inside) + idle["passes"][0] + idle["between"][0]  # type: ignore[index, operator, call-overload]
    assert total == pytest.approx(step.duration_us, rel=1e-6)
    assert sum(p.owner.known for p in inside) > 0.8 * len(inside)  # by number: times are the machine's


def test_on_a_gpu_passes_last_as_long_as_their_kernels_and_waiting_is_no_update(tmp_path: Path) -> None:
    events = []

    def event(category: str, name: str, start_us: float, time_us: float, **arguments: int) -> None:
        where = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 1, "tid": 1}
        events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "ts": start_us,
                "dur": time_us,
                "args": arguments,
                **where,
            }
        )

    def launched(name: str, at_us: float, start_us: float, time_us: float) -> None:
        number = len(events)
        event("cpu_op", name, at_us, 4)
        event("cuda_runtime", "cudaLaunchKernel", at_us + 1, 2, correlation=number)
        event("kernel", f"{name} kernel", start_us, time_us, correlation=number)

    mark = "user_annotation"
    event(mark, STEP, 0, 16_000)  # which ends when the device is done
    event(mark, FORWARD, 10, 50)
    event(mark, f"{OPERATOR}gelu", 15, 20)
    launched("aten::gelu", 20, 100, 6000)
    event(mark, f"{OPERATOR}gradient_clip", 100, 40)
    launched("aten::linalg_vector_norm", 101, 6100, 30)
    launched("c10d::allreduce_", 110, 6130, 9000)
    launched("aten::mul_", 120, 15130, 20)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = rank_trace(read_trace(path), stage=0)
    assert found["messages"] == []
    assert found["forward"] == [[6000, 0]]
    assert found["idle"] == {}
    times = {name: sum(sum(step) for step in steps) for name, _, _, steps in found["operators"]}
    assert times["gelu"] == 6000
    assert times["gradient_clip"] == 50
    assert times["all_reduce/gradient_clip"] == 9000
    model = ModelConfig(
        name="tiny", hidden_size=32, sequence_length=16, attention_heads=4, layers=1, vocabulary_size=100
    )
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
    turn = Turn(job=0, round=0, steps_s=(0.02,), reference_us=(), traces=(found,))
    measured = JobResult(job=TrainingJob(model=model, parallelism=layout), turns=(turn,))
    assert measured.components_s()["Max_Update"] == pytest.approx(50e-6)
    assert measured.components_s()["Stage_Fwd_Max"] == pytest.approx(6e-3)
    assert not any(one.operator.startswith("idle") for one in measured.operator_times())


def test_messages_begin_with_their_calls(tmp_path: Path) -> None:
    """Events of gloo end them; without a call they begin themselves, and collectives are none."""
    rows = [
        ("cpu_op", "c10d::send", 10, 2), ("user_annotation", "gloo:send", 15, 20),
        ("user_annotation", "gloo:recv", 16, 5),
        ("cpu_op", "c10d::recv_", 30, 2), ("user_annotation", "gloo:recv", 33, 40), ("cpu_op", "gloo:send", 50, 5),
        ("user_annotation", "gloo:all_reduce", 60, 5),
        ("cpu_op", "c10d::send", 70, 1), ("user_annotation", "gloo:send", 80, 1),
    ]  # fmt: skip
    events = [
        {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": start,
            "dur": duration,
            "args": {},
        }
        for category, name, start, duration in [("user_annotation", STEP, 0, 100), *rows]
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 7_000_000}))
    assert rank_trace(read_trace(path), stage=0)["messages"] == [
        ["send", 7010, 7035], ["recv", 7016, 7021], ["recv", 7030, 7073], ["send", 7070, 7081],
    ]  # fmt: skip


def test_a_step_of_a_cpu_by_hand(tmp_path: Path) -> None:
    """Marks name operators, autograd's nodes find their forward calls, gradients of the stream meet at a norm."""
    rows = [
        ("user_annotation", STEP, 0, 1000, {}),
        ("user_annotation", FORWARD, 10, 300, {}),
        ("user_annotation", "kernelcast.layer", 20, 200, {}),
        ("user_annotation", f"{OPERATOR}rms_norm", 30, 60, {}),
        ("cpu_op", "aten::pow", 32, 10, {"Sequence number": 1}),
        ("cpu_op", "aten::mul", 50, 30, {"Sequence number": 2}),
        ("user_annotation", f"{OPERATOR}all_reduce/tensor", 100, 40, {}),
        ("cpu_op", "c10d::allreduce_", 110, 20, {}),
        ("cpu_op", "aten::view", 160, 8, {}),
        ("user_annotation", LOSS, 320, 50, {}),
        ("user_annotation", f"{OPERATOR}cross_entropy", 325, 40, {}),
        ("cpu_op", "aten::exp", 326, 4, {"Sequence number": 3}),
        ("cpu_op", "c10d::allreduce_", 335, 6, {}),
        ("cpu_op", "c10d::allreduce_", 345, 8, {}),
        ("user_annotation", BACKWARD, 400, 400, {}),
        ("cpu_op", "autograd::engine::evaluate_function: ExpBackward0", 410, 20, {"Sequence number": 3}),
        ("cpu_op", "aten::neg", 412, 10, {}),
        ("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 440, 60, {"Sequence number": 2}),
        ("cpu_op", "aten::mul", 445, 20, {}),
        ("cpu_op", "aten::add_", 470, 25, {}),
        ("cpu_op", "autograd::engine::evaluate_function: PowBackward0", 510, 40, {"Sequence number": 1}),
        ("cpu_op", "aten::add", 515, 30, {}),
        ("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 560, 16, {}),
        ("cpu_op", "autograd::engine::evaluate_function: ViewBackward0", 600, 12, {"Sequence number": 9}),
        ("user_annotation", f"{OPERATOR}adam", 850, 100, {}),
        ("cpu_op", "aten::_fused_adam_", 860, 70, {}),
        ("cpu_op", "aten::item", 1000, 7, {}),
        ("cpu_op", "aten::late", 1010, 7, {}),
    ]  # fmt: skip
    events = [
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": time, "args": args}
        for category, name, start, time, args in rows
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert rank_trace(read_trace(path), stage=3) == {
        "stage": 3,
        "steps": [1000],
        "forward": [[300 - 40, 1]],
        "loss": [[50 - 14, 2]],
        "backward": [[400, 0]],
        "layer_forward": [[168 - 32 - 40, 1]],
        "layer_backward": [[576 - 440, 0]],
        "messages": [],
        # In passes of 750 µs work takes 282; after them 77 of 250.
        "idle": {"passes": [468], "between": [173]},
        "operators": [
            ["rms_norm", "forward", True, [[48]]],
            ["all_reduce/tensor", "once", True, [[40]]],
            ["aten::view", "forward", False, [[8]]],
            ["cross_entropy", "forward", True, [[4]]],
            ["all_reduce/cross_entropy", "once", True, [[6, 8]]],
            ["cross_entropy", "backward", True, [[20]]],
            ["rms_norm", "backward", True, [[470 - 440 + 576 - 495]]],
            ["residual_add", "backward", True, [[25]]],
            ["ViewBackward0", "backward", False, [[12]]],
            ["adam", "once", True, [[70]]],
            ["aten::item", "forward", False, [[7]]],
        ],
    }
