"""What would make a step fit: every change fits, on as many devices, with as many samples."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from kernelcast.runtime import Estimator, Parallelism, load_model
from kernelcast.runtime.estimate.fitting_changes import fitting_changes
from kernelcast.runtime.request.fields import SAMPLES


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load("h100-sxm")


LAYOUT = Parallelism(pp=1, tp=4, dp=16, micro_batch=4, micro_batches=8)


def asked(estimator: Estimator, **fields: Any) -> Any:
    return estimator.predict(model=load_model("llama-3.1-8b"), parallelism=replace(LAYOUT, **fields))


def test_single_changes(estimator: Estimator) -> None:
    estimate = asked(estimator)
    assert estimate.memory.fits is False
    found = fitting_changes(estimator, estimate)
    kinds = [next(iter(one.fields)) for one in found]
    assert {"recompute", "micro_batch", "tp", "pp", "offload_activations"} <= set(kinds)
    assert len(kinds) == len(set(kinds))
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
    for one in found:
        changed = asked(estimator, **one.fields)
        assert changed.memory.fits
        assert (changed.step_time_s, changed.memory.largest_bytes) == (one.step_time_s, one.memory_bytes)
        layout = changed.parallelism
        assert layout.world_size == LAYOUT.world_size
        assert prod(getattr(layout, name) for name in SAMPLES) == prod(
            getattr(LAYOUT, name) for name in SAMPLES
        )


def test_of_each_kind_the_least(estimator: Estimator) -> None:
    [halved] = [one for one in fitting_changes(estimator, asked(estimator)) if "micro_batch" in one.fields]
    assert halved.fields == {"micro_batch": 2, "micro_batches": 16}


def test_nothing_where_it_fits(estimator: Estimator) -> None:
    assert fitting_changes(estimator, asked(estimator, recompute="full")) == ()


def test_with_full_recomputation_where_no_single_change_does(estimator: Estimator) -> None:
    estimate = estimator.predict(model=load_model("llama-3.1-70b"), parallelism=LAYOUT)
    found = fitting_changes(estimator, estimate)
    assert found
    assert all(one.fields["recompute"] == "full" and len(one.fields) > 1 for one in found)
