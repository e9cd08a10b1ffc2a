"""What is found in a hand-written training step, and what is left of it."""

from collections.abc import Callable
from typing import Any

import pytest

from kernelcast.collector.ingest.attribute_kernels import Extracted, extract
from kernelcast.collector.ingest.recognise import Surroundings
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.kineto import Trace
from kernelcast.collector.training.marks import called

TraceMaker = Callable[..., Trace]


def found(extracted: Extracted) -> dict[tuple[str, str], tuple[tuple[int, ...], float]]:
    """(operator, direction) → vector and time of its only occurrence, µs."""
    return {
        (called(point.operator, point.role), direction.value): (
            point.vector,
            round(one.end_us - one.start_us, 3),
        )
        for (point, direction), (one,) in extracted.points.items()
    }


def test_a_training_step(step: Any, make_trace: TraceMaker) -> None:
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    assert found(extracted) == {
        ("embedding", "forward"): ((4, 50, 8), 3.0),
        ("layer_norm", "forward"): ((2, 2, 8), 4.0),
        ("layer_norm", "backward"): ((2, 2, 8), 6.0),
        ("gemm/qkv", "forward"): ((4, 8, 24), 12.0),  # the product, a gap of 1 µs, the bias
        ("gemm/qkv", "backward"): ((4, 8, 24), 24.0),
        ("flash_attention", "forward"): ((2, 2, 2, 2, 4), 20.0),
        ("gemm/attention_output", "forward"): ((4, 8, 8), 9.0),
        ("gemm/mlp_up", "forward"): ((4, 8, 32), 12.0),
        ("gelu", "forward"): ((2, 2, 32), 2.0),
        ("gemm/mlp_down", "forward"): ((4, 32, 8), 13.0),
        ("residual_add", "forward"): ((2, 2, 8), 2.0),
        ("gemm/logits", "forward"): ((4, 8, 50), 30.0),
        ("all_reduce", "once"): ((4096, 1, 2), 15.0),
    }
    assert {point.dtype for point, _ in extracted.points} == {"bfloat16"}
    left = {key[0]: (key[3], key[4], key[5], *value) for key, value in extracted.left.items()}
    assert left == {
        "accumulate": ("aten::mm", "", "no operator for it", 1, 1.0),
    }
    assert (extracted.count, extracted.recognised_count, extracted.attributed_count) == (16, 15, 15)
    assert extracted.recognised_us + 1.0 == pytest.approx(extracted.total_us)


def test_what_ran_beside_another_stream_is_noticed(step: Any, make_trace: TraceMaker) -> None:
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    overlapped = {
        called(point.operator, point.role) + " " + direction.value
        for (point, direction), (one,) in extracted.points.items()
        if one.is_overlapped
    }
    assert overlapped == {"gemm/qkv backward", "all_reduce once"}


def test_kernels_are_found_by_launch_whatever_their_external_id(step: Any, make_trace: TraceMaker) -> None:
    expected = found(extract(make_trace(step.events), gpus_per_node=8))
    # Older profilers write the correlation id there, others nothing; both may be the number of another call.
    for event in step.events:
        if event["cat"] in ("kernel", "cuda_runtime") and "correlation" in event["args"]:
            event["args"]["External id"] = event["args"]["correlation"] % 30
    assert found(extract(make_trace(step.events), gpus_per_node=8)) == expected
    for event in step.events:
        if event["cat"] in ("kernel", "cuda_runtime"):
            event["args"].pop("External id", None)
    assert found(extract(make_trace(step.events), gpus_per_node=8)) == expected


def test_an_external_id_of_a_call_on_another_thread_is_a_coincidence(
    step: Any, make_trace: TraceMaker
) -> None:
    expected = found(extract(make_trace(step.events), gpus_per_node=8))
    step.host("cpu_op", "aten::gelu", 900, 5000, 3, {"External id": 77_777, "Input Dims": [[9, 9, 9]],
                                                     "Input type": ["float"]})  # fmt: skip
    for event in step.events:
        if event["cat"] == "kernel":
            event["args"]["External id"] = 77_777
    assert found(extract(make_trace(step.events), gpus_per_node=8)) == expected


def test_without_launches_the_external_id_names_the_call(step: Any, make_trace: TraceMaker) -> None:
    expected = found(extract(make_trace(step.events), gpus_per_node=8))
    events = [event for event in step.events if event["cat"] != "cuda_runtime"]
    assert found(extract(make_trace(events), gpus_per_node=8)) == expected


def test_without_host_events_everything_but_collectives_is_left(step: Any, make_trace: TraceMaker) -> None:
    kernels = [event for event in step.events if event["cat"] == "kernel"]
    extracted = extract(make_trace(kernels), gpus_per_node=8)
    assert set(found(extracted)) == {("all_reduce", "once")}
    assert {key[5] for key in extracted.left} == {"no operator of the host is recorded for it"}
    assert sum(count for count, _ in extracted.left.values()) == 15
    assert extracted.attributed_count == 0


def test_without_shapes_only_collectives_are_recognised(step: Any, make_trace: TraceMaker) -> None:
    for event in step.events:
        event["args"].pop("Input Dims", None)
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    assert {operator for operator, _ in found(extracted)} == {"all_reduce"}
    assert {key[5] for key in extracted.left} == {
        "shapes were not recorded (record_shapes)",
        "no operator for it",
    }


def test_recomputed_calls_are_forward(make_trace: TraceMaker, step: Any) -> None:
    start = step.host_us
    step.host("cpu_op", "autograd::engine::evaluate_function: CheckpointFunctionBackward", start, 100, 2, {})
    step.host("cpu_op", "aten::layer_norm", start + 1, 50, 2, {
        "Input Dims": [[2, 2, 8], [], [8], [8], []], "Input type": ["float", "", "float", "float", ""],
        "Sequence number": 90})  # fmt: skip
    node = "autograd::engine::evaluate_function: NativeLayerNormBackward0"
    step.host("cpu_op", node, start + 60, 30, 2, {"Sequence number": 90})
    step.host("cuda_runtime", "cudaLaunchKernel", start + 2, 1, 2, {"correlation": 5000})
    step.kernel("norm_again", step.device_us, 5.0, correlation=5000)
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    [point] = [point for point, direction in extracted.points if point.dtype == "float32"]
    assert (point.operator, point.vector) == ("layer_norm", (2, 2, 8))


def test_a_node_takes_the_latest_call_of_its_name_and_number(make_trace: TraceMaker, step: Any) -> None:
    # Another iteration restarts its numbers, with another shape under the same number.
    again = step.forward("aten::layer_norm", [[3, 3, 8], [], [8], [8], []], ("norm", 4.0))
    step.events[-1]["args"]["External id"] = None
    for event in step.events:
        if event["args"].get("Sequence number") == again:
            event["args"]["Sequence number"] = 2
    step.backward("LayerNormBackward0", 2, ("norm_bwd", 7.0))
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    backward = {point.vector for point, direction in extracted.points if direction.value == "backward"}
    assert {(2, 2, 8), (3, 3, 8)} <= backward


def test_attention_must_be_causal_and_say_so(make_trace: TraceMaker, step: Any) -> None:
    for event in step.events:
        if "Concrete Inputs" in event["args"]:
            event["args"]["Concrete Inputs"][4] = "False"
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    reasons = {key[0]: key[5] for key in extracted.left}
    assert reasons["flash_fwd"] == "attention that is not causal, or does not say (Concrete Inputs)"


def test_a_cpus_calls_are_its_kernels(make_trace: TraceMaker, step: Any) -> None:
    host = [event for event in step.events if event["cat"] == "cpu_op"]
    on_cpu = {"deviceProperties": [], "distributedInfo": None, "cuda_runtime_version": None}
    extracted = extract(make_trace(host, **on_cpu), gpus_per_node=0)
    times = found(extracted)
    assert times["gelu", "forward"] == ((2, 2, 32), 20.0)
    assert times["gemm/qkv", "backward"] == ((4, 8, 24), 20.0)
    assert extracted.attributed_count == extracted.count
    # What the host did while a device that was not recorded worked is no work.
    assert extract(make_trace(host), gpus_per_node=0).count == 0


def test_gloos_collectives_where_there_is_one_group(make_trace: TraceMaker) -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 3, "ts": 5.0, "dur": 80.0,
             "args": {"Input Dims": [[1000]], "Input type": ["float"]}}  # fmt: skip
    group = {"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]}
    info = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": [group]}
    extracted = extract(make_trace([event], deviceProperties=[], distributedInfo=info), gpus_per_node=2)
    assert found(extracted)["all_reduce", "once"] == ((1000, 2, 2), 80.0)
    info["pg_config"] = [group, group]
    extracted = extract(make_trace([event], deviceProperties=[], distributedInfo=info), gpus_per_node=2)
    assert [key[5] for key in extracted.left] == ["a collective whose group was not recorded"]


def test_an_all_to_all_by_nccls_metadata_and_by_gloos(make_trace: TraceMaker, step: Any) -> None:
    step.kernel(
        "ncclDevKernel_SendRecv", step.device_us, 25.0, correlation=9001,
        **{"Collective name": "all_to_all", "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": 2,
           "In split size": "[]", "Out split size": "[]", "dtype": "BFloat16", "Process Group Ranks": "[0, 1]"},
    )  # fmt: skip
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    assert found(extracted)["all_to_all", "once"] == ((4096, 1, 2), 25.0)
    event = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_to_all", "pid": 1, "tid": 3, "ts": 5.0, "dur": 8.0,
             "args": {"Input Dims": [[1000]], "Input type": ["float"]}}  # fmt: skip
    info = {"backend": "gloo", "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    extracted = extract(make_trace([event], deviceProperties=[], distributedInfo=info), gpus_per_node=2)
    assert [key[5] for key in extracted.left] == [
        "an all-to-all that may send more to one process than to another"
    ]


@pytest.mark.parametrize(
    ("operator", "kernel", "dims"),
    [
        ("aten::layer_norm", "norm", [[-1, 2, 8], [], [8], [8], []]),
        ("aten::layer_norm", "norm", [[2, 2, 10**400], [], [8], [8], []]),
        ("aten::gelu", "gelu", [[2, -2, 32], []]),
        ("aten::embedding", "gather", [[50, 8], [2**62] * 40, [], []]),
    ],
)
def test_a_shape_that_no_tensor_has_leaves_its_kernel_over(
    make_trace: TraceMaker, step: Any, operator: str, kernel: str, dims: list[Any]
) -> None:
    expected = found(extract(make_trace(step.events), gpus_per_node=8))
    next(event for event in step.events if event["name"] == operator)["args"]["Input Dims"] = dims
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    [(left, total)] = [(key, total) for key, total in extracted.left.items() if key[0] == kernel]
    assert left[5] == "shapes that the operator here does not have"
    assert total == (1, expected[operator.partition("::")[2], "forward"][1])
    lost = {name for name, _ in expected.keys() - found(extracted).keys()}
    # Without the norm its width is not known, and so what a residual addition is.
    assert lost - {"residual_add"} == {operator.partition("::")[2]}


def test_facts_of_a_whole_trace(step: Any, make_trace: TraceMaker) -> None:
    step.forward("aten::_softmax", [[2, 3, 5, 7], [], []])
    step.forward("aten::_fused_rms_norm", [[2, 2, 9], [], [9]])
    step.forward("aten::layer_norm", [[9], [], [9]])  # of one axis: nothing says that it is a token's
    step.forward("aten::layer_norm", [])
    around = Surroundings.of(CallTree(make_trace(step.events)))
    t, d = 4, 8
    assert around.widths == {d, 9}
    assert around.softmaxes == {(6, 5, 7)}
    assert around.products == {(t, 3 * d), (t, d), (t, 4 * d), (t, 50)}
    assert around.roles.by_width == {
        (d, 3 * d): "qkv", (d, d): "attention_output", (d, 4 * d): "mlp_up", (4 * d, d): "mlp_down", (d, 50): "logits"
    }  # fmt: skip


def test_calls_alone_of_a_job_on_gpus_are_no_work(step: Any, make_trace: TraceMaker) -> None:
    found = extract(make_trace([one for one in step.events if one["cat"] == "cpu_op"]), gpus_per_node=8)
    assert (found.points, found.left) == ({}, {})
    assert (found.count, found.total_us, found.attributed_count, found.attributed_us) == (0, 0, 0, 0)
    assert (found.recognised_count, found.recognised_us) == (0, 0)
