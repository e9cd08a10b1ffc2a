"""Answers on a device that was measured in part: heads for samples, launches, passes over gradients."""

from collections.abc import Sequence

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism, read_bundle
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.operators import Direction, Key, Vector
from kernelcast.runtime.shipped import BUNDLES

F, B, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
MIXTURE = ModelConfig(
    name="mixture",
    hidden_size=4096,
    sequence_length=1024,
    attention_heads=8,
    layers=2,
    vocabulary_size=50_000,
    experts=8,
    experts_per_token=2,
    expert_size=1024,
)


def asked(key: Key, vector: Vector) -> tuple[Vector, float]:
    entries = read_bundle(BUNDLES / "b200-sxm.kcast").entries
    source = source_of(key, entries)
    assert source is not None
    return source.asked(vector, entries[source.answered_by])


def predicted() -> Estimate:
    return Estimator.load("hardware:b200-sxm").predict(
        model=MIXTURE,
        parallelism=Parallelism(pp=1, tp=1, dp=4, ep=4, micro_batch=1, micro_batches=1),
        cluster=Cluster(gpus_per_node=8),
    )


def times_us(estimate: Estimate, operator: str) -> Sequence[float]:
    return [row.time_us for row in estimate.operators if row.operator == operator]


def test_samples_are_heads_where_one_sample_was_measured() -> None:
    # SimuMax's backward passes are of one sample each; forward passes were measured with many.
    assert asked(("flash_attention", B), (4, 4096, 32, 8, 128)) == ((1, 4096, 128, 32, 128), 1.0)
    assert asked(("flash_attention", F), (4, 4096, 32, 8, 128)) == ((4, 4096, 32, 8, 128), 1.0)


def test_a_router_takes_as_long_as_the_launches_of_its_kernels() -> None:
    # 46 and 20 kernels of 3 µs each; its scores, 1,024 · 8 entries, move in less.
    assert times_us(predicted(), "router") == [46 * 3.0, 20 * 3.0]


def test_passes_over_gradients_are_answered_by_an_addition_that_moves_as_much() -> None:
    estimate = predicted()
    zero, clip = (times_us(estimate, f"gradient_{name}")[0] for name in ("zero", "clip"))
    # One and three times the parameters are moved.
    assert clip == pytest.approx(3 * zero, rel=0.1)
    warnings = [str(one) for one in estimate.warnings]
    assert (
        "gradient_clip (once): not in the bundle, answered by residual_add moving as much memory" in warnings
    )
    assert any("answered by 4.2 times residual_add" in one for one in warnings)
