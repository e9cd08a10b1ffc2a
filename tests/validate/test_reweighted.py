"""A step whose operators take as long as predicted is the predicted one, also where a bundle lacks some of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.operators import OPERATORS
from kernelcast.validate.reweighted import reweighted_step_s

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=32, attention_heads=4, layers=4, vocabulary_size=256
)
OPTIONAL = tuple(name for name, one in OPERATORS.items() if one.is_optional)


@pytest.mark.parametrize("without", [(), OPTIONAL])
def test_factors_multiply_the_times_of_a_step(
    make_bundle: Callable[..., Path], without: tuple[str, ...]
) -> None:
    bundle = make_bundle({"gemm": 30.0}, without=without)
    layout = Parallelism(pp=2, tp=2, dp=2, micro_batch=1, micro_batches=4, zero=1)
    factors = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 1.0]])
    for timeline in ("simulate", "closed-form"):
        estimate = Estimator.load(bundle).predict(
            model=MODEL,
            parallelism=layout,
            cluster=Cluster(gpus_per_node=4),
            timeline=timeline,
            interval=False,
        )
        found = reweighted_step_s(estimate, factors, lambda name: int(name != "gemm"), layout)
        assert found[:2] == pytest.approx([estimate.step_time_s, 2 * estimate.step_time_s])
        assert found[0] < found[2] < 3 * found[0]
