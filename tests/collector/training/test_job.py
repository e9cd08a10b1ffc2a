"""Layouts that leave stages empty, and those that only look like it."""

import pytest

from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.steps import Effort, train_jobs
from kernelcast.runtime import ModelConfig, Parallelism, UsageError

MODEL = ModelConfig(
    name="tiny", hidden_size=32, sequence_length=16, attention_heads=4, layers=4, vocabulary_size=200
)


def job(pp: int, counts: tuple[int, ...]) -> TrainingJob:
    """As many chunks on every stage as the counts ask for."""
    virtual_stages = len(counts) // pp
    layout = Parallelism(
        pp=pp,
        tp=1,
        dp=1,
        micro_batch=1,
        micro_batches=pp,
        schedule="interleaved" if virtual_stages > 1 else "1f1b",
        virtual_stages=virtual_stages,
        layer_counts=counts,
    )
    return TrainingJob(model=MODEL, parallelism=layout)


@pytest.mark.parametrize(
    ("pp", "counts", "stage"), [(3, (2, 0, 2), 1), (4, (2, 2, 0, 0), 2), (3, (1, 0, 1, 1, 0, 1), 1)]
)
def test_a_stage_without_anything_is_named(pp: int, counts: tuple[int, ...], stage: int) -> None:
    with pytest.raises(UsageError) as caught:
        job(pp, counts)
    assert str(caught.value) == (
        f"layer_counts is {counts}, which leaves stage {stage} (from 0) empty; "
        "real steps need a layer on every stage between the first and the last"
    )


def test_stages_that_have_something_else_or_another_chunk_are_trained() -> None:
    jobs = [job(3, (0, 4, 0)), job(3, (1, 0, 1, 1, 1, 0)), job(2, (2, 0, 2, 0))]
    effort = Effort(rounds=1, warm_up_steps=0, steps=1, traced=False)
    turns = train_jobs(jobs, effort=effort, seed=1, timeout_s=100)
    assert [turn.job for turn in turns] == [0, 1, 2]
