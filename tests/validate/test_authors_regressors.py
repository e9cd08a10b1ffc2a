"""Measured components implied by published errors, from rows whose times are known by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, Estimate, Estimator
from kernelcast.runtime.answers.asking import Question, question
from kernelcast.runtime.operators import Direction
from kernelcast.store.importers import PublishedError, read_estimate_train_time, read_published_errors
from kernelcast.validate.authors_regressors import AuthorsRegressors
from kernelcast.validate.runs import MeasuredRun, RunsFile

Theirs = tuple[AuthorsRegressors, MeasuredRun, Estimate]


@pytest.fixture
def theirs(make_site: Callable[[], Path], make_bundle: Callable[..., Path], tmp_path: Path) -> Theirs:
    """The regressors of the made-up site, its first step, and any prediction of it."""
    site = make_site()
    run = RunsFile.read(tmp_path / "runs.toml").runs[0]
    parsed, published = read_estimate_train_time([site]), read_published_errors(site)
    estimate = Estimator.load(make_bundle(dtype="float16")).predict(**run.asked, timeline="closed-form")
    return AuthorsRegressors.of(parsed, published, dtype="float16"), run, estimate


def asked_of(estimate: Estimate, operator: str, direction: Direction) -> Question:
    calls = (call for stage in range(2) for _, call in estimate.parts.calls(stage))
    return next(question(call) for call in calls if call.operator == operator and call.direction is direction)


def test_a_call_takes_what_the_rows_say(theirs: Theirs) -> None:
    found, _, estimate = theirs
    # 2 · 32 · 64 elements, as one of the rows: 10 µs + elements / 50, twice that backward.
    (_, vector, role) = asked_of(estimate, "gemm", Direction.FORWARD)
    norm = asked_of(estimate, "rms_norm", Direction.FORWARD)
    assert found.time_us(norm) == pytest.approx(10 + 2 * 32 * 64 / 50, rel=0.3)
    forward_us = found.time_us((("gemm", Direction.FORWARD), vector, role))
    halves = [
        found.time_us((("gemm", direction), vector, role))
        for direction in (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT)
    ]
    # Either gradient of a linear is half of the backward pass that they measured.
    assert halves[0] == halves[1] == pytest.approx(forward_us, rel=0.3)
    sent = asked_of(estimate, "point_to_point", Direction.ONCE)
    times_us = [
        found.time_us((sent[0], (sent[1][0], nodes, gpus), sent[2]))
        for nodes, gpus in ((1, 2), (2, 1), (2, 2))
    ]
    assert times_us[1] - times_us[0] == pytest.approx(30, rel=0.01)  # µs that a node more takes
    assert math.isnan(times_us[2])  # of no layout that they measured


def test_published_errors_imply_the_measured_times(theirs: Theirs) -> None:
    found, run, estimate = theirs
    asked = [question(call) for stage in range(2) for _, call in estimate.parts.calls(stage)]
    told: list[tuple[int, int, str]] = []
    found.ask_ahead(asked, lambda *done: told.append(done))
    assert [done for done, _, _ in told] == list(range(1, len(told) + 1))
    assert {total for _, total, _ in told} == {len(told)}
    assert len(found.fitted) == len(told) > 5
    found.ask_ahead(asked, lambda *done: told.append(done))
    assert len(told) == len(found.fitted)  # none is fitted twice
    implied = found.components(run, estimate)
    assert implied is not None
    assert set(implied) == set(run.published_components or {})
    exact = found.components(replace(run, published_components=dict.fromkeys(implied, 0.0)), estimate)
    assert exact is not None
    assert {name: exact[name] / time_s - 1 for name, time_s in implied.items()} == pytest.approx(
        run.published_components
    )
    sent = asked_of(estimate, "point_to_point", Direction.ONCE)
    assert exact["PP_P2P"] == pytest.approx(found.time_us(sent) / 1e6)
    assert found.components(replace(run, published_components={}), estimate) is None
    # A component without a prediction of theirs implies nothing, and no regressor at all no component.
    nothing = replace(run, published_components={"MP_Allreduce": 0.1})
    assert found.components(nothing, estimate) == {}
    none = AuthorsRegressors(settings={}, rows=found.rows, fitted={})
    assert none.components(run, estimate) is None
    assert math.isnan(AuthorsRegressors(settings=found.settings, rows={}, fitted={}).time_us(sent))


def test_rows_of_another_element_type_and_settings_that_cannot_be_fitted(
    theirs: Theirs, make_site: Callable[[], Path], tmp_path: Path
) -> None:
    found, _, estimate = theirs
    site = tmp_path / "Example"
    parsed, published = read_estimate_train_time([site]), read_published_errors(site)
    other = AuthorsRegressors.of(parsed, published, dtype="bfloat16")
    assert (other.settings, other.rows) == ({}, {})

    def wrong(one: PublishedError) -> PublishedError:
        return replace(one, hyperparameters={"n_trees": 3})

    asked = asked_of(estimate, "rms_norm", Direction.FORWARD)
    with pytest.raises(
        DataError, match=r"^published settings of rms_norm \(forward\): cannot be fitted \(.*n_trees"
    ):
        AuthorsRegressors.of(parsed, map(wrong, published), dtype="float16").time_us(asked)
    assert found.fitted == {}
