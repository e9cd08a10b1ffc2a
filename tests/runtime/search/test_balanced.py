"""Layers spread by time: the ends of the model have fewer where that shortens a step, and fits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space

MODEL = ModelConfig(
    name="deep", hidden_size=64, sequence_length=8, attention_heads=8, layers=16, vocabulary_size=100
)
LAYOUT = Parallelism(pp=4, tp=1, dp=1, micro_batch=1, micro_batches=16, layer_split="balanced")
NODE = Cluster(gpus_per_node=4)


@pytest.fixture
def heavy_loss(make_bundle: Callable[..., Path]) -> Estimator:
    """A layer takes 360 µs for a micro-batch (12 operators, a linear's gradients 20), the loss 1,210 µs."""
    return Estimator.load(make_bundle({"cross_entropy": 500.0}))


def step_s(estimator: Estimator, layout: Parallelism) -> float:
    return estimator.predict(model=MODEL, parallelism=layout, cluster=NODE, interval=False).step_time_s


def test_a_heavy_loss_takes_layers_from_the_last_stage(heavy_loss: Estimator) -> None:
    even = heavy_loss.predict(
        model=MODEL, parallelism=replace(LAYOUT, layer_split="even"), cluster=NODE, interval=False
    )
    found = heavy_loss.predict(model=MODEL, parallelism=LAYOUT, cluster=NODE)
    layer_us = 1e6 * (even.components.layer_forward_s + even.components.layer_backward_s)
    slowest_us = [1e6 * (one.forward_s + one.backward_s) for one in even.stages]
    # The loss takes as long as 3.1 layers, which leaves 4.8 to every stage: three of them have 5.
    assert slowest_us[3] - slowest_us[1] == pytest.approx(1060, abs=20)
    assert layer_us == pytest.approx(350, abs=30)
    assert found.layer_counts == found.parallelism.layer_counts == (5, 5, 5, 1)
    assert found.step_time_s < 0.8 * even.step_time_s
    # The estimate depends on the counts alone, not on who chose them.
    given = replace(LAYOUT, layer_counts=(5, 5, 5, 1))
    assert heavy_loss.predict(model=MODEL, parallelism=given, cluster=NODE).step_time_s == found.step_time_s


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15)
@given(first=st.integers(0, 8), last=st.integers(0, 8), pp=st.sampled_from([2, 4]))
def test_no_other_ends_have_a_shorter_step(heavy_loss: Estimator, first: int, last: int, pp: int) -> None:
    """Up to what fill and drain of the pipeline differ by."""
    layout = replace(LAYOUT, pp=pp, micro_batches=64)
    found = heavy_loss.predict(model=MODEL, parallelism=layout, cluster=NODE, interval=False)
    between = 16 - first - last
    if pp == 2:
        other = (first, 16 - first)
    elif between % 2:
        return
    else:
        other = (first, between // 2, between // 2, last)
    assert found.step_time_s <= 1.02 * step_s(heavy_loss, replace(layout, layer_counts=other))


def test_an_even_split_stays_where_nothing_is_gained(heavy_loss: Estimator) -> None:
    one = heavy_loss.predict(model=MODEL, parallelism=replace(LAYOUT, micro_batches=1), cluster=NODE)
    assert one.parallelism == replace(LAYOUT, micro_batches=1, layer_split="even")
    alone = heavy_loss.predict(model=MODEL, parallelism=replace(LAYOUT, pp=1), cluster=NODE)
    assert alone.parallelism == replace(LAYOUT, pp=1, layer_split="even")


def test_a_slow_update_of_fuller_stages_counts(
    make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]
) -> None:
    """A layer more on a stage adds 5 µs per update and parameter thousand: more than 15 micro-batches gain."""
    adam = linear_model([0.5, 0.0], 1.0)
    slow = Estimator.load(make_bundle({"cross_entropy": 500.0, "adam": adam}))
    assert slow.predict(model=MODEL, parallelism=LAYOUT, cluster=NODE).layer_counts == (4, 4, 4, 4)


def question(**options: object) -> Question:
    memory = options.pop("gpu_memory_bytes", None)
    space = Space(
        model=MODEL,
        gpus=(4,),
        global_batch=16,
        gpus_per_node=4,
        pp=(4,),
        micro_batch=(1,),
        recompute=("none",),
        zero=(0,),
        **options,  # type: ignore[arg-type]
    )
    return Question(space=space, top=100, gpu_memory_bytes=memory)  # type: ignore[arg-type]


def test_a_search_spreads_layers_by_time_unless_asked_not_to(heavy_loss: Estimator) -> None:
    balanced = search(heavy_loss, question())
    even = search(heavy_loss, question(common={"layer_split": "even"}))
    assert balanced.counts.layouts == even.counts.layouts
    assert balanced.best is not None
    assert even.best is not None
    assert balanced.best.step_time_s < even.best.step_time_s
    assert {one.parallelism.layer_counts for one in even.top} == {None}
    cut = [one for one in balanced.top if one.parallelism.schedule == "1f1b"]
    assert [one.parallelism.layer_counts for one in cut] == [(5, 5, 5, 1)]
    for one in balanced.top:
        assert one.step_time_s == step_s(heavy_loss, one.parallelism)
        assert one.memory_bytes == pytest.approx(one.estimate.memory.largest_bytes, rel=1e-6)
    assert balanced.to_dict()["asked"]["layer_split"] == "balanced"
    assert balanced.to_dict()["best"]["parallelism"]["layer_counts"] == balanced.best.parallelism.layer_counts


def test_a_cut_that_does_not_fit_is_not_taken(heavy_loss: Estimator) -> None:
    both = [
        search(heavy_loss, question(schedules=("1f1b",), common={"layer_split": s})).best
        for s in ("even", "balanced")
    ]
    even, balanced = (one for one in both if one is not None)
    assert even.memory_bytes < balanced.memory_bytes
    limited = search(
        heavy_loss, question(schedules=("1f1b",), gpu_memory_bytes=balanced.memory_bytes - 1)
    ).best
    assert limited is not None
    assert limited.parallelism == even.parallelism
    assert limited.step_time_s == even.step_time_s
