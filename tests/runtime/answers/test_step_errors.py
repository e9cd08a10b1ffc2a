"""What sums of operators get wrong: quantiles by hand, who is left out, and that the shipped table is current."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.uncertainty import (
    STEP_LOG_SPREAD,
    CarriedError,
    ErrorsOfSource,
    StepErrors,
    is_carried,
    shipped_step_errors,
    unexplained,
)
from kernelcast.runtime.catalogue import load_bundle
from kernelcast.runtime.stack import FittedRuns, Stack
from kernelcast.validate.step_errors import quantiles_of, step_errors, step_errors_json

Make = Callable[..., Path]
FEW = ErrorsOfSource(
    name="few",
    publisher="A",
    kind="dense",
    model="m",
    timeline="simulate",
    steps=2,
    unsteady=0,
    log_errors=(0.0, 0.1),
)
MANY = ErrorsOfSource(
    name="many",
    publisher="B",
    kind="dense",
    model="n",
    timeline="simulate",
    steps=4,
    unsteady=0,
    log_errors=(0.2, 0.3, 0.4, 0.5),
)
STACK = Stack(name="ours", software="some", source="a test", residual=0.03)
MODEL = ModelConfig(
    name="small", hidden_size=64, sequence_length=8, attention_heads=8, layers=4, vocabulary_size=100
)
ONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=2)


def fitted_to(asked: str, digest: str = "0" * 64) -> Stack:
    run = FittedRuns(file="a.toml", digest="1" * 64, asked=asked, bundle_digest=digest, fabric="f", steps=1)
    return replace(STACK, runs=(run,))


def test_every_source_weighs_the_same_however_many_its_steps() -> None:
    both = StepErrors(sources=(MANY, FEW))
    # Two of the six values hold a quarter each, the others an eighth: the middles of their weights.
    levels = (0.125, 0.375, 0.5625, 0.6875, 0.8125, 0.9375)
    assert both.quantiles(levels).tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert both.quantiles([0.0, 1.0]).tolist() == [0.0, 0.5]


def test_steps_of_another_kind_weigh_a_fifth_and_models_of_one_machine_share_its_weight() -> None:
    other = replace(MANY, name="others", kind="experts", log_errors=(1.0,))
    # Weights of 0.5, 0.5 and 0.2.
    halves = StepErrors(sources=(FEW, other)).quantiles([0.25 / 1.2, 0.75 / 1.2, 1.1 / 1.2], "dense")
    assert halves.tolist() == pytest.approx([0.0, 0.1, 1.0])
    one_machine = StepErrors(sources=(FEW, replace(FEW, model="another", log_errors=(0.4, 0.6)), other))
    assert one_machine.quantiles([0.125 / 1.2, 0.875 / 1.2], "dense").tolist() == pytest.approx([0.0, 0.6])


def test_steps_on_another_maker_s_devices_weigh_a_tenth_where_the_asked_kind_is_known() -> None:
    own = replace(FEW, log_errors=(0.0,))
    errors = StepErrors(sources=(own, replace(MANY, devices="rocm", log_errors=(1.0,))))
    # Weights of 1 and 0.1: the middles are at 0.5 and 1.05 of 1.1.
    assert errors.quantiles([0.5 / 1.1, 1.05 / 1.1], "dense", "cuda").tolist() == pytest.approx([0.0, 1.0])
    assert errors.quantiles([0.05 / 1.1, 0.6 / 1.1], "dense", "rocm").tolist() == pytest.approx([0.0, 1.0])
    plain = errors.quantiles([0.25, 0.75], "dense").tolist()
    assert plain == pytest.approx([0.0, 1.0])
    # Bundles of several kinds, and kinds that no step ran on, change no weight.
    assert errors.quantiles([0.25, 0.75], "dense", "cpu").tolist() == plain
    # Both weights multiply: a step of experts on ROCm counts a fiftieth of a dense one on CUDA.
    both = StepErrors(sources=(own, replace(MANY, kind="experts", devices="rocm", log_errors=(1.0,))))
    assert both.quantiles([0.5 / 1.02, 1.01 / 1.02], "dense", "cuda").tolist() == pytest.approx([0.0, 1.0])


def test_the_shipped_table_knows_which_devices_are_of_another_maker() -> None:
    of = {one.name: one.devices for one in shipped_step_errors().sources}
    assert (
        {name for name, devices in of.items() if devices == "rocm"}
        == {name for name in of if "-mi3" in name}
        != set()
    )


def test_one_publisher_s_steps_are_left_out_with_what_was_carried_to_them() -> None:
    to_few, to_many = (CarriedError(stack="s", name=name, steps=2, log_error=0.1) for name in ("few", "many"))
    both = StepErrors(sources=(MANY, FEW), carried=(to_few, to_many))
    assert both.without("A") == StepErrors(sources=(MANY,), carried=(to_many,))
    assert both.without("C") == both
    assert both.without("B", "m").sources == both.sources
    assert both.without("A", "m") == both.without("A")
    assert both.of("closed-form").sources == ()


def test_draws_have_the_distribution_of_the_errors_and_are_a_prior_without() -> None:
    both = StepErrors(sources=(FEW, MANY))
    [middle] = both.quantiles([0.5])
    drawn = np.log(unexplained(None, 2000, both))
    # Of two publishers, √(1 + 1/2) times as far from the median.
    expected = [middle + (one - middle) * math.sqrt(1.5) for one in (0.1, 0.3)]
    assert np.quantile(drawn, [0.375, 0.6875]).tolist() == pytest.approx(expected, abs=2e-3)
    alone = StepErrors(sources=(FEW, replace(FEW, name="its other machine")))
    assert alone.quantiles_elsewhere([0.25]).tolist() == pytest.approx([0.05 - 0.05 * math.sqrt(2)])
    assert np.log(unexplained(None, 2000, StepErrors())).std() == pytest.approx(STEP_LOG_SPREAD, rel=0.01)


def test_a_stack_keeps_its_residual_and_is_less_sure_on_another_device() -> None:
    errors = StepErrors(
        sources=(FEW,),
        carried=(
            CarriedError(stack="s", name="few", steps=2, log_error=0.05),
            CarriedError(stack="s", name="more", steps=2, log_error=-0.03),
        ),
    )
    assert errors.carried_spread == pytest.approx(math.sqrt((0.05**2 + 0.03**2) / 2))
    assert np.log(unexplained(STACK, 2000, errors)).std() == pytest.approx(0.03, rel=0.01)
    carried = np.log(unexplained(STACK, 2000, errors, is_carried=True)).std()
    assert carried == pytest.approx(math.hypot(0.03, errors.carried_spread), rel=0.01)


@pytest.mark.parametrize(
    ("asked", "carried"),
    [
        ("a100-sxm", False),
        ("a100-sxm-40gb", False),  # the same chip
        ("a100-sxm-gpt-neox", False),
        ("a100-pcie", True),
        ("b200-sxm", True),
        ("here.kcast", True),
    ],
)
def test_a_stack_is_carried_where_no_step_was_of_the_chip(asked: str, carried: bool) -> None:
    bundle = load_bundle("hardware:a100-sxm")
    assert is_carried(fitted_to(asked), bundle) is carried
    assert not is_carried(fitted_to(asked, bundle.digest), bundle)
    assert not is_carried(STACK, bundle)
    assert not is_carried(None, bundle)


def test_a_carried_stack_s_step_is_the_same_with_a_wider_interval(make_bundle: Make) -> None:
    a100 = Estimator.load("hardware:a100-sxm")
    at_home, carried = (
        a100.with_stack(fitted_to(asked)).predict(model=MODEL, parallelism=ONE)
        for asked in ("a100-sxm", "b200-sxm")
    )
    assert at_home.step_time_s == carried.step_time_s
    assert at_home.interval_s is not None
    assert carried.interval_s is not None
    assert carried.interval_s[1] > at_home.interval_s[1]


def test_an_estimator_leaves_a_publisher_out_and_forgets_what_it_answered() -> None:
    estimator = Estimator.load("hardware:a100-sxm")
    with_all = estimator.predict(model=MODEL, parallelism=ONE)
    without = estimator.leaving_out("MooreThreads/SimuMax").predict(model=MODEL, parallelism=ONE)
    assert without.step_time_s == with_all.step_time_s
    assert without.interval_s != with_all.interval_s
    assert (
        estimator.leaving_out("nobody").predict(model=MODEL, parallelism=ONE).interval_s
        == with_all.interval_s
    )


def test_few_errors_are_kept_and_many_become_equally_likely_quantiles() -> None:
    assert quantiles_of([0.3, 0.1, 0.2]) == (0.1, 0.2, 0.3)
    found = quantiles_of([one / 1000 for one in range(1000)])
    assert len(found) == 20
    assert found[0] == pytest.approx(0.025, abs=1e-3)
    assert found[-1] == pytest.approx(0.974, abs=1e-3)


@pytest.mark.slow
def test_what_ships_is_what_the_steps_show_now() -> None:
    shipped, now = shipped_step_errors(), step_errors()
    assert [replace(one, log_errors=()) for one in shipped.sources] == [
        replace(one, log_errors=()) for one in now.sources
    ], "make step-errors"
    for one, other in zip(shipped.sources, now.sources, strict=True):
        assert one.log_errors == pytest.approx(other.log_errors, abs=0.01), "make step-errors"
    assert sum(one.unsteady for one in shipped.sources if one.name == "vista") == 4
    assert shipped.carried_spread == pytest.approx(now.carried_spread, abs=0.005)
    assert step_errors_json(shipped).count('"publisher"') == len(shipped.sources)
