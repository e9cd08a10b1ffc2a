"""A search without a front leaves out layouts whose least time is too long, and finds the same best ones."""

import random

import numpy as np
import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.request.schedule import USUAL_SCHEDULES
from kernelcast.runtime.search.lower_bound import least_us
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.sweep import _Sweep, sweep

MODELS = ("llama-3-8b", "llama-2-7b", "qwen3-30b-a3b", "gpt-20b", "mixtral-8x7b")


def _asked(seed: int) -> tuple[Estimator, Question]:
    """A random search."""
    one = random.Random(seed)
    estimator = Estimator.load(one.choice(("h100-sxm", "a100-sxm", "b200-sxm")))
    gpus = one.choice((8, 16, 24, 32, 64, 128))
    asked = {
        "gpus": (gpus,),
        "global_batch": gpus * one.choice((1, 2, 4, 8)),
        "top": one.choice((1, 5, 20)),
        "virtual_stages": (1, 2, 4),
        "gpu_memory_bytes": one.choice((None, 80 << 30, 160 << 30)),
        "rank_by": one.choice(("step-time", "tokens-per-gpu")),
        "overlap_gradients": one.choice((False, True)),
        "recompute_layers": one.choice((0, 0, 3)),
        "layer_split": one.choice(("balanced", "even")),
        "exposed_share": one.choice((0.0, 0.25, 1.0)),
        "shard_group": one.choice((0, 0, 2)),
        "objective": one.choice(("next_token", "dpo")),
        "expert_overlap": one.choice((False, True)),
        "schedules": one.choice((USUAL_SCHEDULES, ("1f1b", "zb_v", "dualpipe", "dualpipe_v"))),
        "cp": (1,),
    }
    question = read_question(
        asked, model=find_model(one.choice(MODELS)).model, bundle=estimator.bundle, fabric=None
    )
    return estimator, replace(question, by_kind=one.choice((False, True)))


def _compare(seed: int) -> int:
    """Compare a random search with the exhaustive one; returns how many layouts it simulated."""
    estimator, question = _asked(seed)
    first = sweep(estimator.predictor, replace(question, front=False))
    every = sweep(estimator.predictor, replace(question, prune=False))
    assert first.best.layouts.table.tolist() == every.best.layouts.table.tolist()
    assert first.best.step_us.tolist() == every.best.step_us.tolist()
    assert first.counts.layouts == every.counts.layouts
    assert first.counts.evaluated == every.counts.evaluated == every.counts.simulated
    return first.counts.simulated


@pytest.mark.parametrize("seed", [0, 5])
def test_no_step_is_shorter_than_its_lower_bound(seed: int) -> None:
    estimator, question = _asked(seed)
    found = _Sweep(estimator.predictor, question, 0, 1, None)
    shares = []
    for engine, layouts, memory in found._fitting():
        least = least_us(engine, layouts)
        for group in engine.configurations(found._balanced(engine, layouts, memory)[0]):
            shares.append(least[group.rows] / group.times("simulate").step_us)
    share = np.concatenate(shares)
    assert share.max() <= 1
    # The bound of the best decides how many are left out.
    assert np.median(share) > 0.5


def test_the_same_best_as_the_exhaustive_search() -> None:
    for seed in range(2):
        _compare(seed)


@pytest.mark.slow
def test_the_same_best_as_the_exhaustive_search_of_many() -> None:
    for seed in range(2, 200):
        _compare(seed)


def test_few_layouts_are_simulated() -> None:
    estimator = Estimator.load("h100-sxm")
    question = read_question(
        {"gpus": (64,), "global_batch": 512, "top": 20},
        model=find_model("llama-3-8b").model,
        bundle=estimator.bundle,
        fabric=None,
    )
    found = sweep(estimator.predictor, replace(question, front=False))
    assert len(found.best) == 20
    assert not len(found.front)
    assert found.counts.evaluated > 10_000
    assert found.counts.simulated < 100
