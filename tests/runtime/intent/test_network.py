"""Steps at half and double the described rate between nodes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import Estimator, Parallelism, load_model
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.hardware.fabric import fabric_named
from kernelcast.runtime.intent.answer import rate_sensitivity


def predicted(estimator: Estimator, *, dp: int, **options: object) -> Estimate:
    layout = Parallelism(pp=1, tp=4, dp=dp, micro_batch=1, micro_batches=2)
    return estimator.predict(model=load_model("llama-2-7b"), parallelism=layout, **options)  # type: ignore[arg-type]


def test_it_is_what_such_a_fabric_answers(a100: Estimator) -> None:
    estimate = predicted(a100, dp=16)
    found = rate_sensitivity(a100, estimate)
    assert found is not None
    assert estimate.provenance.collectives is not None
    fabric = fabric_named(estimate.provenance.collectives.name)
    assert fabric.between is not None
    assert found.gbit_per_s_per_device == 200
    for factor, change in ((0.5, found.at_half), (2, found.at_double)):
        between = replace(fabric.between, gbit_per_s=factor * fabric.between.gbit_per_s)
        other = predicted(a100, dp=16, fabric=replace(fabric, between=between))
        assert change == pytest.approx(other.step_time_s / estimate.step_time_s - 1)
    assert found.at_half > 0 > found.at_double


def test_a_fabric_that_is_asked_for(a100: Estimator) -> None:
    fabric = fabric_named("a100-400g")
    found = rate_sensitivity(a100, predicted(a100, dp=16, fabric=fabric), fabric=fabric)
    assert found is not None
    assert found.fabric == "a100-400g"
    assert found.gbit_per_s_per_device == 50


def test_a_job_within_a_node_has_none(a100: Estimator) -> None:
    assert rate_sensitivity(a100, predicted(a100, dp=2)) is None


def test_measured_collectives_have_none(make_bundle: Callable[..., object]) -> None:
    estimator = Estimator.load(str(make_bundle()))
    assert rate_sensitivity(estimator, predicted(estimator, dp=16)) is None
