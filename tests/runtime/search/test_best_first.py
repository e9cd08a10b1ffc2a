"""A search without a front leaves out layouts whose passes alone are too slow, and finds the same best ones."""

import random

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.sweep import sweep

MODELS = ("llama-3-8b", "llama-2-7b", "qwen3-30b-a3b", "gpt-20b", "mixtral-8x7b")


def _compare(seed: int) -> int:
    """Compare a random search with the exhaustive one; returns how many layouts it simulated."""
    one = random.Random(seed)
    estimator = Estimator.load(one.choice(("h100-sxm", "a100-sxm", "b200-sxm")))
    gpus = one.choice((16, 24, 32, 64, 128))
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
        "cp": (1,),
    }
    question = read_question(
        asked, model=find_model(one.choice(MODELS)).model, bundle=estimator.bundle, fabric=None
    )
    first = sweep(estimator.predictor, replace(question, front=False))
    every = sweep(estimator.predictor, replace(question, prune=False))
    assert first.best.layouts.table.tolist() == every.best.layouts.table.tolist()
    assert first.best.step_us.tolist() == every.best.step_us.tolist()
    assert first.counts.layouts == every.counts.layouts
    assert first.counts.evaluated == every.counts.evaluated == every.counts.simulated
    return first.counts.simulated


def test_the_same_best_as_the_exhaustive_search() -> None:
    for seed in range(2):
        _compare(seed)


@pytest.mark.slow
def test_the_same_best_as_the_exhaustive_search_of_many() -> None:
    for seed in range(2, 22):
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
