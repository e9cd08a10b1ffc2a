"""Layouts that leave stages empty, and those that only look like it."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.collector.training.job import TrainingEffort, TrainingJob
from kernelcast.collector.training.steps import train_jobs
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


MIXTURE = {"experts": 4, "experts_per_token": 2, "norm": "rms_norm", "activation": "swiglu", "biases": "none"}


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"qk_norm": True}, {}, "model tiny: qk_norm is true, real steps train false only"),
        (
            {"kv_rank": 8, "rotary_size": 4},
            {},
            "model tiny: kv_rank is 8, real steps train 0 only",
        ),
        (
            MIXTURE | {"router": "sigmoid"},
            {},
            "model tiny: router is sigmoid, real steps train softmax only with experts",
        ),
        (
            {"sliding_window": 4, "attention": "unfused"},
            {},
            "model tiny: attention is unfused, real steps train flash only with sliding_window",
        ),
        ({}, {"cp": 2}, "context_exchange is ring, real steps train all_to_all only (cp 2)"),
        ({}, {"dropout": 0.1}, "dropout is 0.1, real steps train 0.0 only"),
        (
            MIXTURE,
            {"dp": 2, "ep": 2},
            "zero is 1, real steps train 0 only with ep 2: devices hold different experts",
        ),
        (
            MIXTURE,
            {"cp": 2, "context_exchange": "all_to_all"},
            "cp is 2, real steps train 1 only with the experts of model tiny",
        ),
    ],
)
def test_what_is_not_trained_is_refused_by_name(
    fields: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    layout = Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2} | options)
    with pytest.raises(UsageError) as caught:
        TrainingJob(model=replace(MODEL, **fields), parallelism=layout)
    assert str(caught.value) == message


def test_further_degrees_stand_in_the_label() -> None:
    degrees = {"dp": 2, "zero": 0, "ep": 2}
    layout = Parallelism(**{"pp": 1, "tp": 1, "micro_batch": 1, "micro_batches": 2} | degrees)  # type: ignore[arg-type]
    assert TrainingJob(model=replace(MODEL, **MIXTURE), parallelism=layout).label == "1-1-2-ep2"  # type: ignore[arg-type]
    split = Parallelism(pp=1, tp=1, dp=1, cp=2, micro_batch=1, micro_batches=2, context_exchange="all_to_all")
    assert TrainingJob(model=MODEL, parallelism=split).label == "1-1-1-cp2"


@pytest.mark.slow
def test_stages_that_have_something_else_or_another_chunk_are_trained() -> None:
    jobs = [job(3, (0, 4, 0)), job(3, (1, 0, 1, 1, 1, 0)), job(2, (2, 0, 2, 0))]
    effort = TrainingEffort(rounds=1, warm_up_steps=0, steps=1, traced=False)
    turns = train_jobs(jobs, effort=effort, seed=1, timeout_s=3000)
    assert [turn.job for turn in turns] == [0, 1, 2]
