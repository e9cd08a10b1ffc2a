"""What traces of ranks add up to: the paper's components, where traces are written down by hand."""

from typing import Any

import pytest

from kernelcast.collector.training.job import TrainingJob, Turn
from kernelcast.collector.training.job_result import JobResult
from kernelcast.runtime import ModelConfig, Parallelism

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=32, attention_heads=4, layers=7, vocabulary_size=500
)
LAYOUT = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=4)


def rank(**more: Any) -> dict[str, Any]:
    """A rank's trace with what is given; see collector/training/rank_trace.py."""
    nothing: dict[str, Any] = {
        name: []
        for name in (
            "operators", "forward", "loss", "backward", "layer_forward", "layer_backward", "messages",
        )
    }  # fmt: skip
    return {"stage": 0, "steps": [1.0], "idle": {}, **nothing, **more}


def result(layout: Parallelism, *ranks: dict[str, Any]) -> JobResult:
    turn = Turn(job=0, round=0, steps_s=(1.0,), reference_us=(), traces=ranks)
    return JobResult(job=TrainingJob(model=MODEL, parallelism=layout), turns=(turn,))


def components_s(layout: Parallelism, *ranks: dict[str, Any]) -> dict[str, float]:
    return result(layout, *ranks).components_s()


def test_chunks_of_a_stage_are_added_though_they_take_different_times() -> None:
    layout = Parallelism(
        pp=2, tp=1, dp=1, micro_batch=1, micro_batches=4,
        schedule="interleaved", virtual_stages=2, layer_counts=(1, 5, 1, 0),
    )  # fmt: skip

    def of_chunks(first_us: float, second_us: float) -> dict[str, Any]:
        step = [[first_us, 0]] * 2 + [[second_us, 0]] * 2 + [[first_us, 0]] * 2 + [[second_us, 0]] * 2
        return rank(forward=step * 3, backward=[[2 * own, sums] for own, sums in step] * 3)

    found = components_s(layout, of_chunks(1500.0, 1000.0), of_chunks(5000.0, 1000.0))
    assert found["Stage_Fwd_Max"] == pytest.approx(6e-3)
    assert found["Stage_Bwd_Max"] == pytest.approx(12e-3)


def test_the_losss_messages_count_by_their_own_time() -> None:
    layout = Parallelism(pp=1, tp=2, dp=1, micro_batch=1, micro_batches=4)

    def of_rank(waited_us: float) -> dict[str, Any]:
        return rank(
            operators=[
                ["all_reduce/tensor", "once", True, [[100.0, 300.0]]],
                ["all_reduce/cross_entropy", "once", True, [[10.0 + waited_us, 30.0]]],
            ],
            forward=[[1000.0, 2]],
            loss=[[500.0, 2]],
            backward=[[2000.0, 0]],
        )

    found = components_s(layout, of_rank(0.0), of_rank(70.0))
    assert found["MP_Allreduce"] == pytest.approx(200e-6)
    # The shorter of the group's two: the other one waited.
    assert found["Stage_Fwd_Max"] == pytest.approx((1000 + 2 * 200 + 500 + 2 * 20) * 1e-6)


def test_turns_follow_each_other_and_the_last_traced_one_counts() -> None:
    turns = [
        Turn(job=0, round=n, steps_s=(1.0 + n, 2.0 + n), reference_us=(5.0 + n,), traces=traces)
        for n, traces in enumerate([(rank(steps=[1.0]),), (rank(steps=[2.0]),), ()])
    ]
    found = JobResult(job=TrainingJob(model=MODEL, parallelism=LAYOUT), turns=tuple(turns))
    assert found.steps_s == (1, 2, 2, 3, 3, 4)
    assert found.reference_us == (5, 6, 7)
    assert found.traces[0]["steps"] == [2.0]
    untraced = JobResult(job=found.job, turns=tuple(turns[2:]))
    assert (untraced.components_s(), untraced.operator_times()) == ({}, [])


def test_messages_take_from_sending_to_a_receiver_that_waited() -> None:
    layout = Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=3)
    first = [["send", 10.0, 11.0], ["recv", 50.0, 70.0], ["send", 90.0, 91.0], ["send", 200.0, 201.0]]
    # The second one came before its receiver waited, the third one as it ended.
    second = [["recv", 5.0, 34.0], ["send", 50.0, 61.0], ["recv", 95.0, 99.0], ["recv", 150.0, 200.0]]
    passes = {"forward": [[1000.0, 0]], "backward": [[2000.0, 0]]}
    ranks = rank(messages=first, **passes), rank(messages=second, **passes)
    found = components_s(layout, *ranks)
    assert found["PP_P2P"] == pytest.approx((24 + 20) / 2 * 1e-6)
    # Charged to the sender: the first stage's forward pass, the second's backward pass.
    assert found["Stage_Fwd_Max"] == pytest.approx(1022e-6)
    assert found["Stage_Bwd_Max"] == pytest.approx(2022e-6)
    # The last stage sends nothing forward, the first one nothing backward.
    longer = components_s(
        layout,
        rank(messages=first, forward=[[1000.0, 0]], backward=[[2100.0, 0]]),
        rank(messages=second, forward=[[1100.0, 0]], backward=[[2000.0, 0]]),
    )
    assert longer["Stage_Fwd_Max"] == pytest.approx(1100e-6)
    assert longer["Stage_Bwd_Max"] == pytest.approx(2100e-6)
    [sent] = result(layout, *ranks).operator_times()
    assert (sent.operator, sent.direction, sent.known) == ("point_to_point/pipeline", "once", True)
    assert (sent.calls, sent.step_us) == (2 * 3, pytest.approx(6 * 22))
    assert "PP_P2P" not in components_s(LAYOUT, ranks[0])
    three = Parallelism(pp=3, tp=1, dp=1, micro_batch=1, micro_batches=3)
    assert "PP_P2P" not in components_s(three, *ranks, ranks[0])


@pytest.mark.parametrize("zero", [0, 1])
def test_an_update_is_that_of_the_slowest_rank_with_its_gather(zero: int) -> None:
    layout = Parallelism(pp=2, tp=1, dp=2, micro_batch=1, micro_batches=4, zero=zero)

    def of_rank(adam_us: float, reduced_us: float, gathered_us: float) -> dict[str, Any]:
        return rank(
            operators=[
                ["adam", "once", True, [[adam_us, 5.0]]],
                ["adam", "once", False, [[1e6]]],
                ["gelu", "forward", True, [[1e6]]],
                ["all_reduce/data", "once", True, [[reduced_us]]],
                ["all_gather/data", "once", True, [[gathered_us]]],
            ],
            layer_forward=[[reduced_us, 0]],
        )

    # Stages of two ranks: the smaller of both is no waiting.
    found = components_s(
        layout, of_rank(30, 100, 20), of_rank(40, 140, 50), of_rank(60, 400, 10), of_rank(35, 300, 12)
    )
    assert found["DP_Allreduce"] == pytest.approx(100e-6)  # of the first stage
    # 40 + 5 and 20 µs are less than 60 + 5 and 10.
    assert found["Max_Update"] == pytest.approx(75e-6)
    assert found.get("DP_Allgather") == (pytest.approx(10e-6) if zero else None)
    assert found["Encoder_Fwd"] == pytest.approx((100 + 140 + 400 + 300) / 4 * 1e-6)
    assert (found["Encoder_Bwd"], found["Stage_Fwd_Max"]) == (0.0, 0.0)
    assert {"MP_Allreduce", "PP_P2P"} & set(found) == set()


def test_operators_are_means_of_a_stage_and_sums_over_stages() -> None:
    layout = Parallelism(pp=2, tp=2, dp=1, micro_batch=1, micro_batches=4)

    def of_rank(own_us: float, waited_us: float) -> dict[str, Any]:
        return rank(
            operators=[
                ["gemm/qkv", "forward", True, [[own_us, own_us], [own_us, own_us, 0.0]]],
                ["all_reduce/tensor", "once", True, [[7.0 + waited_us]]],
                ["a kernel", "backward", False, [[1.0]]],
            ],
            idle={"passes": [2.0, 2.0]},
            layer_backward=[[50.0, 3]],
        )

    ranks = of_rank(10, 0), of_rank(20, 90), of_rank(30, 5), of_rank(40, 2)
    times = result(layout, *ranks).operator_times()
    assert [one.step_us for one in times] == sorted((one.step_us for one in times), reverse=True)
    found = {(one.operator, one.direction, one.known): (one.calls, one.step_us) for one in times}
    # The means of 20 and 40 µs, and of 60 and 80; three calls in the longest step of each stage.
    assert found["gemm/qkv", "forward", True] == pytest.approx((6, 30 + 70))
    assert found["all_reduce/tensor", "once", True] == pytest.approx((2, 7 + 9))
    assert found["a kernel", "backward", False] == pytest.approx((2, 2))
    assert found["idle passes", "once", False] == pytest.approx((2, 4))
    layers = components_s(layout, *ranks)["Encoder_Bwd"]
    assert layers == pytest.approx((50 + 3 * (7 + 7 + 9 + 9) / 4) * 1e-6)
