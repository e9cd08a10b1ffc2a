"""A search ranks by the very times that `predict` gives, to the last bit: both run the same engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import Estimator, ModelConfig
from kernelcast.runtime.answers.bundle_times import BundleTimes
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.search.needed_memory import needed_bytes
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import Ranked
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.search.sweep import sweep
from kernelcast.runtime.step.layouts import SCHEDULES

MODEL = ModelConfig(
    name="tiny",
    hidden_size=64,
    sequence_length=24,
    attention_heads=8,
    kv_heads=4,
    layers=7,
    vocabulary_size=1000,
    activation="swiglu",
    attention="fused_softmax",
    learned_positions=24,
)


@pytest.mark.parametrize("timeline", ["simulate", "closed-form"])
@pytest.mark.parametrize("bucket_entries", [10_000, 10**9])
def test_ranked_times_are_those_of_predict_to_the_bit(
    make_calibrated: Callable[[Any], Path], timeline: Any, bucket_entries: int
) -> None:
    estimator = Estimator.load(make_calibrated(timeline))
    space = Space(model=MODEL, gpus=(1, 2, 8), global_batch=8, gpus_per_node=4, schedules=SCHEDULES)
    question = Question(
        space=space, timeline=timeline, bucket_entries=bucket_entries, top=10_000, prune=False
    )
    best = sweep(estimator.predictor, question).best
    layouts = [best.layouts.parallelism(row) for row in range(len(best))]
    assert {one.zero for one in layouts} == {0, 1, 2, 3}
    assert {one.recompute for one in layouts} == {"none", "selective", "full"}
    assert {one.schedule for one in layouts} == set(SCHEDULES)
    assert {(one.sequence_parallel, one.tp) for one in layouts} >= {(False, 4), (True, 4)}
    assert {min(4, one.world_size) for one in layouts} == {1, 2, 4}
    assert len(layouts) > 800
    other = Estimator(estimator.bundle)
    for row in range(0, len(layouts), 11):
        # With and without random draws: the first configuration is the estimate, whatever is evaluated with it.
        for interval in (False, row % 2 == 0):
            estimate = other.predict(
                model=MODEL,
                parallelism=layouts[row],
                cluster=question.cluster,
                bucket_entries=bucket_entries,
                timeline=timeline,
                interval=interval,
            )
            assert estimate.step_time_s == best.step_us[row] / 1e6
            assert estimate.provenance.calibration is not None
            assert estimate.provenance.calibration.applied
            assert estimate.answered_with == (min(4, layouts[row].world_size),)


def test_every_piece_is_asked_once(estimator: Estimator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Direction]] = []
    answers_of = Predictor.answers_of

    def counted(self: Predictor, operator: str, direction: Direction, vectors: Any) -> Any:
        asked.append((operator, direction))
        return answers_of(self, operator, direction, vectors)

    monkeypatch.setattr(Predictor, "answers_of", counted)
    space = Space(model=MODEL, gpus=(8,), global_batch=8, gpus_per_node=4)
    question = Question(space=space)
    engine = Engine(
        MODEL, question.cluster, question.bucket_entries, BundleTimes(estimator.predictor), element_bytes=4
    )
    for layouts, _ in space.blocks():
        before = len(asked)
        assert sum(len(group.rows) for group in engine.configurations(layouts)) == len(layouts)
        # All pieces of a block are priced together: every regressor at most once.
        assert len(set(asked[before:])) == len(asked[before:]) > 0
    before = len(asked)
    for layouts, _ in space.blocks():
        list(engine.configurations(layouts))
    assert len(asked) == before


def test_no_more_is_simulated_than_the_most_promising_leave_open(estimator: Estimator) -> None:
    """Layouts with the best bounds are simulated first, then only layouts whose bounds are not behind their times."""
    space = Space(model=MODEL, gpus=(8,), global_batch=16, gpus_per_node=4, common={"layer_split": "even"})
    question = Question(space=space, top=3)
    engine = Engine(
        MODEL, question.cluster, question.bucket_entries, BundleTimes(estimator.predictor), element_bytes=4
    )
    groups, bounded, exact = [], Found(), Found()
    for layouts, _ in space.blocks(simulated=True):
        memory = needed_bytes(estimator.bundle, MODEL, layouts)
        for group in engine.configurations(layouts):
            own, needed, bound_us = layouts.take(group.rows), memory[group.rows], group.bound_us()
            groups.append((own, needed, bound_us, group.times("simulate").step_us))
            bounded.add(Ranked(own, bound_us, bound_us, needed), question.top)
    promising = bounded.best.with_others(bounded.front).layouts["index"]
    for own, needed, _, times_us in groups:
        chosen = np.isin(own["index"], promising)
        exact.add(Ranked(own, times_us, times_us, needed).take(chosen), question.top)
    left = sum(
        exact.may_matter(question, Ranked(own, bound_us, bound_us, needed)).sum()
        for own, needed, bound_us, _ in groups
    )
    counts = sweep(estimator.predictor, question).counts
    assert 0 < counts.simulated <= left < counts.evaluated / 2
    assert counts.simulated + counts.pruned == counts.evaluated == sum(len(own) for own, *_ in groups)
