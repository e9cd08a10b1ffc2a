"""A calibrated bundle: its factors reach every time, its intervals are wider, and what it may hold is checked."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, DataError, Estimator, ModelConfig, Parallelism, read_bundle
from kernelcast.runtime.bundle.calibration import CLASSES, Calibration, CalibrationRun, factor_of
from kernelcast.runtime.bundle.difference import compare_bundles
from kernelcast.runtime.bundle.file import write_bundle
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.views.estimate_page import page

Make = Callable[..., Path]
FACTORS = (1.1, 0.9, 1.3, 2.0)
MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=8, attention_heads=8, layers=6, vocabulary_size=100
)
LAYOUT = Parallelism(pp=2, tp=2, dp=2, micro_batch=1, micro_batches=4)
NODES = Cluster(gpus_per_node=4)
same_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)


def calibration(factors: tuple[float, ...] = FACTORS, **changes: Any) -> Calibration:
    """One measured step, and factors as they are wanted; without uncertainty unless `changes` say some."""
    values: dict[str, Any] = {
        "timeline": "simulate",
        "source": "a site",
        "source_digest": "ab",
        "measured_at": "2026-01-01T00:00:00+00:00",
        "kernelcast_version": "0.1.0",
        "parameters": 1,
        "log_factors": tuple(map(math.log, factors)),
        "log_spread": ((0.0,),) * 4,
        "residual": 0.0,
        "prior": 0.05,
        "runs": (
            CalibrationRun(
                label="tiny (2-2-2)",
                measured_s=1.5,
                error_before=-0.1,
                error_left_out=None,
                error_after=-0.05,
            ),
        ),
    }
    return Calibration(**values | changes)


def calibrated(path: Path, found: Calibration) -> Path:
    """The bundle at `path` with a calibration, written next to it."""
    bundle = read_bundle(path)
    models = {entry.file: bundle.model(entry.key) for entry in bundle.manifest.regressors}
    target = path.with_name(f"calibrated-{path.name}")
    write_bundle(target, replace(bundle.manifest, calibration=found), models)
    return target


def scaled_times(factors: tuple[float, ...]) -> dict[tuple[str, Direction], float]:
    """Times of a bundle for `make_bundle`, operator i taking i + 1 µs, multiplied by class."""
    return {
        (operator.name, direction): (number + 1) * factors[CLASSES.index(operator.operator_class)]
        for number, operator in enumerate(OPERATORS.values())
        for direction in operator.directions
    }


@pytest.fixture
def bundle(make_bundle: Make) -> Path:
    """Operator i takes i + 1 µs."""
    return make_bundle(scaled_times((1.0,) * 4))


def test_factors_reach_operators_before_they_are_added_up(bundle: Path, make_bundle: Make) -> None:
    scaled = make_bundle(scaled_times(FACTORS), name="scaled.kcast")
    question = {"model": MODEL, "parallelism": LAYOUT, "cluster": NODES}
    for zero in (0, 1, 2, 3):
        question["parallelism"] = replace(LAYOUT, zero=zero)
        found = Estimator.load(calibrated(bundle, calibration())).predict(**question)
        wanted = Estimator.load(scaled).predict(**question)
        assert found.step_time_s == pytest.approx(wanted.step_time_s, rel=1e-6)
        assert found.components.to_dict() == pytest.approx(wanted.components.to_dict(), rel=1e-6)
        for row, other in zip(found.operators, wanted.operators, strict=True):
            assert (row.time_us, row.low_us) == pytest.approx((other.time_us, other.low_us), rel=1e-6)


@pytest.mark.parametrize("timeline", ["simulate", "closed-form"])
def test_a_search_answers_with_the_same_factors(bundle: Path, timeline: Any) -> None:
    estimator = Estimator.load(calibrated(bundle, calibration(timeline=timeline)))
    space = Space(
        model=MODEL, gpus=(8,), global_batch=4, gpus_per_node=4, zero=(0, 1), recompute=("none", "full"),
        schedules=("1f1b", "interleaved"),
    )  # fmt: skip
    every = search(estimator, Question(space=space, timeline=timeline, top=10_000, prune=False)).top
    assert len(every) > 50
    result = search(estimator, Question(space=space, timeline=timeline))
    # What they were ranked by are the times of the estimates, which the factors reach.
    assert [answer.step_time_s for answer in every] == sorted(answer.step_time_s for answer in every)
    assert [answer.parallelism for answer in result.top] == [answer.parallelism for answer in every[:10]]
    plain = Estimator(estimator.bundle, calibrated=False)
    in_order = [
        plain.predict(
            model=MODEL, parallelism=answer.parallelism, cluster=NODES, timeline=timeline, interval=False
        ).step_time_s
        for answer in every
    ]
    assert in_order != sorted(in_order)
    provenance = result.to_dict()["provenance"]
    assert provenance["calibration"]["applied"] is True


def test_it_is_applied_to_its_timeline_only_and_not_when_switched_off(bundle: Path) -> None:
    path = calibrated(bundle, calibration())
    question: dict[str, Any] = {"model": MODEL, "parallelism": LAYOUT, "cluster": NODES}
    estimator, plain = Estimator.load(path), Estimator.load(bundle)
    closed = estimator.predict(**question, timeline="closed-form")
    assert closed.step_time_s == plain.predict(**question, timeline="closed-form").step_time_s
    use = closed.provenance.calibration
    assert use is not None
    assert (use.applied, use.reason) == (False, "fitted for timeline simulate")
    off = Estimator.load(path, calibrated=False).predict(**question)
    assert (off.step_time_s, off.interval_s) == (
        plain.predict(**question).step_time_s,
        plain.predict(**question).interval_s,
    )
    assert off.provenance.calibration is not None
    assert off.provenance.calibration.reason == "switched off"
    assert off.step_time_s != estimator.predict(**question).step_time_s
    assert plain.predict(**question).provenance.calibration is None


def test_every_answer_says_so(bundle: Path) -> None:
    estimator = Estimator.load(calibrated(bundle, calibration()))
    estimate = estimator.predict(model=MODEL, parallelism=LAYOUT, cluster=NODES)
    said = estimate.to_dict()["provenance"]["calibration"]
    assert said["applied"] is True
    assert said["factors"] == pytest.approx({one.value: f for one, f in zip(CLASSES, FACTORS, strict=True)})
    assert json.loads(json.dumps(said)) == said
    assert "communication × 1.300" in page(estimate)
    explanations = explain_operator(estimate, estimator.bundle, "adam")
    assert [one.role for one in explanations] == ["first_stage", "last_stage"]
    for explanation in explanations:
        assert explanation.to_dict()["calibration_factor"] == pytest.approx(2.0)
    [setting] = compare_bundles(read_bundle(bundle), estimator.bundle).settings
    assert (setting.name, setting.a) == ("calibration", "none")
    assert "compute-bound × 1.100" in setting.b


def test_what_it_leaves_open_widens_the_interval_and_moves_no_time(
    make_bundle: Make, linear_model: Any
) -> None:
    sure = {
        key: linear_model([0.0] * len(OPERATORS[key[0]].features), time_us, low=1.0, high=1.0)
        for key, time_us in scaled_times((1.0,) * 4).items()
    }
    bundle = make_bundle(sure)
    question: dict[str, Any] = {"model": MODEL, "parallelism": LAYOUT, "cluster": NODES}
    exact = Estimator.load(calibrated(bundle, calibration())).predict(**question)
    assert exact.interval_s == pytest.approx((exact.step_time_s,) * 2)
    for changes in ({"residual": 0.1}, {"log_spread": ((0.1,),) * 4}):
        found = Estimator.load(calibrated(bundle, calibration(**changes))).predict(**question)
        assert found.step_time_s == exact.step_time_s
        low_s, high_s = found.interval_s or (0.0, 0.0)
        # 5th and 95th percentile of a log-normal with a standard deviation of 0.1.
        assert math.log(found.step_time_s / low_s) == pytest.approx(0.1645, rel=0.05)
        assert math.log(high_s / found.step_time_s) == pytest.approx(0.1645, rel=0.05)


def test_there_and_back_in_the_same_bytes(bundle: Path) -> None:
    before = read_bundle(bundle)
    assert b'"calibration"' not in before.manifest.to_json()
    first = read_bundle(calibrated(bundle, calibration()))
    again = read_bundle(calibrated(bundle, calibration()))
    assert first.digest == again.digest != before.digest
    assert first.manifest.calibration == calibration()
    assert first.files == before.files


@same_folder
@given(data=st.data())
def test_no_changed_byte_of_it_goes_unnoticed(data: st.DataObject, bundle: Path) -> None:
    path = calibrated(bundle, calibration())
    content = bytearray(path.read_bytes())
    begin = content.index(b'"calibration"')
    end = content.index(b'"compute"', begin)
    content[data.draw(st.integers(begin, end))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"^bundle .*calibrated-test\.kcast: "):
        read_bundle(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timeline": "guess"}, "timeline is 'guess', expected simulate or closed-form"),
        ({"log_factors": [0.0, 0.0, 0.0]}, "log_factors is (0.0, 0.0, 0.0), expected 4 numbers"),
        (
            {"log_factors": [0.0, 0.0, 0.0, 2.4]},
            "log_factors is (0.0, 0.0, 0.0, 2.4), expected 4",
        ),
        ({"log_factors": [0.0, 0.0, 0.0, 1e999]}, "log_factors is (0.0, 0.0, 0.0, inf)"),
        ({"log_factors": "1"}, "log_factors is '1', expected a list"),
        ({"log_spread": [[0.0]] * 3}, "log_spread is "),
        ({"log_spread": [[0.0, 0.0]] * 4}, "log_spread is "),
        ({"log_spread": [0.0] * 4}, "log_spread[0] is 0.0, expected a list of numbers"),
        ({"log_spread": [[10**400]] * 4}, "log_spread is ((inf,), "),
        ({"log_spread": [[-9.0]] * 4}, "log_spread is "),
        ({"residual": -0.1}, "residual is -0.1, expected 0 to 2.30"),
        ({"prior": 0}, "prior is 0.0, expected above 0"),
        ({"parameters": 5}, "parameters is 5, expected 1 to 4"),
        ({"parameters": True}, "parameters is true, expected a whole number"),
        ({"runs": []}, "runs is (), expected at least one"),
        ({"runs": [3]}, "runs[0] is 3, expected a table"),
        ({"source": "a\nb"}, "source is 'a\\nb', expected a text on one line"),
        ({"source_digest": "xyz"}, "source_digest is 'xyz', expected hex digits"),
        ({"measured_at": "yesterday"}, "measured_at is 'yesterday', expected ISO 8601"),
        (
            {"classes": ["compute-bound"]},
            "classes is ['compute-bound'], expected this version's",
        ),
        ({"colour": 1}, "field 'colour' is unknown"),
    ],
)
def test_wrong_values_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        Calibration.from_dict(calibration().to_dict() | change)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": ""}, "runs[0].label is '', expected a text"),
        ({"measured_s": 0}, "runs[0].measured_s is 0.0, expected a number above 0"),
        ({"measured_s": 1e999}, "runs[0].measured_s is inf"),
        (
            {"error_before": -1},
            "runs[0].error_before is -1.0, expected a number above -1",
        ),
        ({"error_before": None}, "runs[0].error_before is null, expected a number"),
        ({"error_left_out": -2}, "runs[0].error_left_out is -2.0, expected a number above -1"),
    ],
)
def test_wrong_runs_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    values = calibration().to_dict()
    values["runs"][0] |= change
    with pytest.raises(DataError) as caught:
        Calibration.from_dict(values)
    assert str(caught.value).startswith(message)


def test_intervals_of_factors_and_errors() -> None:
    found = calibration(parameters=2, log_spread=((0.03, 0.04),) * 4)
    low, high = found.intervals[CLASSES[0]]
    assert np.log([low, high]) == pytest.approx(math.log(1.1) + 0.05 * np.array([-1.6449, 1.6449]), rel=1e-3)
    assert (found.mean_error_before, found.mean_error_left_out, found.helps) == (0.1, None, None)
    assert factor_of(None, "gelu") == 1.0
    assert factor_of(found, "gelu") == pytest.approx(0.9)
    runs = tuple(replace(found.runs[0], error_left_out=error) for error in (0.02, -0.04))
    assert replace(found, runs=runs).mean_error_left_out == pytest.approx(0.03)
    assert replace(found, runs=runs).helps is True
