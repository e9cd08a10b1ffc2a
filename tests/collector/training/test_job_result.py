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


def components_s(layout: Parallelism, *ranks: dict[str, Any]) -> dict[str, float]:
    turn = Turn(job=0, round=0, steps_s=(1.0,), reference_us=(), traces=ranks)
    return JobResult(job=TrainingJob(model=MODEL, parallelism=layout), turns=(turn,)).components_s()


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
