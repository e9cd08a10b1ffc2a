"""Intervals beyond the trained range: untouched inside, wider the farther out, never turned round."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.sources import (
    MOST_TIMES,
    added_half_width,
    doublings_beyond,
    layout_doublings,
    widened,
)
from kernelcast.runtime.bundle.regressor_entry import PRIOR, HeldOut, RegressorEntry, Widening
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Direction, Key

NORM, REDUCE = ("layer_norm", Direction.FORWARD), ("all_reduce", Direction.ONCE)
GEMM = ("gemm", Direction.FORWARD)
HALF_TO_TWICE = (8.0, 4.0, 16.0)
Regressor = Callable[..., RegressorEntry]
WIDENING = Widening(size_per_doubling=0.1, layout_per_doubling=0.5, new_role=0.3)


def entry(regressor: Regressor, key: Key = NORM, widening: Widening | None = WIDENING) -> RegressorEntry:
    return replace(regressor(key, b"model", largest=64), widening=widening)


def test_inside_nothing_changes(regressor: Regressor) -> None:
    assert added_half_width(entry(regressor), (64, 1, 8), "") == 0
    assert widened(HALF_TO_TWICE, 0) == HALF_TO_TWICE


@pytest.mark.parametrize(("largest", "doublings"), [(128, 1), (256, 2), (1024, 4), (65, 0)])
def test_every_doubling_adds_as_much(regressor: Regressor, largest: int, doublings: float) -> None:
    assert added_half_width(entry(regressor), (1, largest, 2), "") == pytest.approx(0.1 * doublings)
    # A bundle that has no record of distances is widened by a documented prior.
    prior = added_half_width(entry(regressor, widening=None), (1, largest, 2), "")
    assert prior == pytest.approx(PRIOR.size_per_doubling * doublings)


def test_the_logarithm_of_the_interval_gets_wider_on_both_sides() -> None:
    time_us, low_us, high_us = widened(HALF_TO_TWICE, math.log(3))
    assert (time_us, low_us, high_us) == (8, pytest.approx(4 / 3), pytest.approx(48))
    assert widened(HALF_TO_TWICE, 1e9) == (8, pytest.approx(8 / MOST_TIMES), pytest.approx(8 * MOST_TIMES))


def test_below_the_range_too(regressor: Regressor) -> None:
    one = replace(entry(regressor), training_range=((32.0, 64.0),) * 3)
    assert doublings_beyond(one, (32, 8, 16)) == 2
    assert added_half_width(one, (32, 8, 16), "") == pytest.approx(0.2)


def test_layouts_are_as_far_as_the_nearest_measured_one(regressor: Regressor) -> None:
    one = replace(entry(regressor, REDUCE), layouts=((1, 2), (2, 4)))
    assert layout_doublings(one, (64, 2, 4)) == 0
    assert layout_doublings(one, (64, 4, 4)) == 1
    assert layout_doublings(one, (64, 1, 8)) == 2
    assert added_half_width(one, (256, 16, 4), "data") == pytest.approx(0.1 * 2 + 0.5 * 3)


def test_links_that_were_not_measured_are_another_matter(regressor: Regressor) -> None:
    one = replace(entry(regressor, REDUCE), layouts=((1, 2), (1, 4)))
    assert added_half_width(one, (64, 1, 8), "data") == pytest.approx(0.5)
    assert added_half_width(one, (64, 2, 4), "data") == pytest.approx(0.5 + math.log(10))
    both = replace(one, layouts=((1, 2), (1, 4), (2, 1)))
    assert added_half_width(both, (64, 2, 4), "data") == pytest.approx(0.5)


def test_a_million_devices_from_two_are_a_guess(regressor: Regressor) -> None:
    one = replace(entry(regressor, REDUCE, None), layouts=((1, 2),))
    _, low_us, high_us = widened((1000, 990, 1010), added_half_width(one, (64, 1 << 17, 8), "data"))
    assert low_us < 10
    assert high_us > 100_000


def test_a_role_that_was_not_measured_is_less_sure(regressor: Regressor) -> None:
    one = replace(entry(regressor, GEMM), role_errors={"qkv": 0.1})
    assert added_half_width(one, (1, 1, 1), "qkv") == 0
    assert added_half_width(one, (1, 1, 1), "mlp_gate_up") == pytest.approx(0.3)
    assert added_half_width(replace(one, role_errors={}), (1, 1, 1), "mlp_gate_up") == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture has no state
@given(
    vector=st.tuples(*[st.integers(1, 2**40)] * 3),
    below=st.floats(1, 1e4),
    above=st.floats(1, 1e4),
    sizes=st.floats(0, 10),
)
def test_an_interval_stays_one(
    regressor: Regressor, vector: tuple[int, ...], below: float, above: float, sizes: float
) -> None:
    answer = 3.0, 3.0 / below, 3.0 * above
    widening = replace(WIDENING, size_per_doubling=sizes)
    added = added_half_width(entry(regressor, widening=widening), vector, "")
    time_us, low_us, high_us = widened(answer, added)
    assert (time_us, low_us > 0, low_us <= answer[1]) == (3, True, True)
    assert answer[2] <= high_us < math.inf


@given(sizes=st.floats(0, 1e3), layouts=st.floats(0, 1e3), role=st.floats(0, 1e3), inside=st.floats(0, 1))
def test_a_widening_is_read_as_it_was_written(
    sizes: float, layouts: float, role: float, inside: float
) -> None:
    held_out = (HeldOut(kind="size", doublings=math.inf, rows=3, inside=inside),)
    one = Widening(size_per_doubling=sizes, layout_per_doubling=layouts, new_role=role, held_out=held_out)
    assert Widening.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_a_widening_that_cannot_be_is_refused() -> None:
    with pytest.raises(DataError, match=r"^new_role is -1, expected at least 0$"):
        replace(WIDENING, new_role=-1)


def test_an_estimate_is_less_sure_beyond(make_bundle: Callable[..., Path]) -> None:
    estimator = Estimator.load(make_bundle(largest=64))

    def width(sequence_length: int) -> float:
        model = ModelConfig(
            name="tiny", hidden_size=16, sequence_length=sequence_length, attention_heads=2, layers=2,
            vocabulary_size=10,
        )  # fmt: skip
        estimate = estimator.predict(
            model=model, parallelism=Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
        )
        assert estimate.interval_s is not None
        return estimate.interval_s[1] / estimate.interval_s[0]

    assert width(64) < width(1024) < width(1 << 14)
