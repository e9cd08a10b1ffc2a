"""Measured steps and predictions whose operators' times are known by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, DataError, Estimator, ModelConfig, Parallelism
from kernelcast.validate.comparison import compare_runs, mean_absolute
from kernelcast.validate.runs import MeasuredRun

Make = Callable[..., Path]
MODEL = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=6, vocabulary_size=100
)
RUN = MeasuredRun(
    label="a run",
    model=MODEL,
    parallelism=Parallelism(pp=2, tp=1, dp=2, micro_batch=1, micro_batches=3),
    cluster=Cluster(gpus_per_node=2),
    measured_s=0.002,
)


def test_a_run_is_predicted_both_ways_as_predict_does(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle())
    [found] = compare_runs(estimator, [RUN])
    for timeline, step_s in (
        ("closed-form", found.closed_form.step_time_s),
        ("simulate", found.simulated.step_time_s),
    ):
        asked = estimator.predict(
            model=MODEL, parallelism=RUN.parallelism, cluster=RUN.cluster, timeline=timeline
        )
        assert step_s == asked.step_time_s
    assert found.error == pytest.approx(found.closed_form.step_time_s / 0.002 - 1)
    assert found.simulated_error < found.error  # stages are uneven: the closed form is above
    assert found.simulated.interval_s is None  # never shown
    document = found.to_dict()
    assert (document["model"], document["pp"], document["tp"], document["dp"]) == ("tiny", 2, 1, 2)
    assert document["predicted_s"] == found.closed_form.step_time_s
    assert document["interval_s"][0] < document["predicted_s"] < document["interval_s"][1]


def test_components_come_from_the_file_first_then_from_what_is_implied(make_bundle: Make) -> None:
    run = replace(RUN, measured_components={"PP_P2P": 4e-6}, published_components={"PP_P2P": 0.1})
    [found] = compare_runs(
        Estimator.load(make_bundle()),
        [run],
        implied=lambda run, estimate: {"PP_P2P": 1.0, "Encoder_Fwd": 1e-5},
    )
    components = {one.name: one for one in found.components()}
    sent, layer, update = (components[name] for name in ("PP_P2P", "Encoder_Fwd", "Max_Update"))
    assert (sent.measured_s, sent.implied, sent.published_error) == (4e-6, False, 0.1)
    assert sent.error == pytest.approx(5e-6 / 4e-6 - 1)
    assert (layer.measured_s, layer.implied, layer.published_error) == (1e-5, True, None)
    assert (update.measured_s, update.error) == (None, None)
    assert found.implied_step_s is None  # of the parts that it is made of, none is implied


def test_implied_components_add_up_by_the_closed_form(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle())
    [found] = compare_runs(estimator, [RUN], implied=lambda run, estimate: estimate.components.to_dict())
    assert found.implied_step_s == pytest.approx(found.closed_form.step_time_s)


def test_a_run_that_cannot_be_predicted_is_named(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle(without=["point_to_point"]))
    with pytest.raises(DataError, match=r"^run a run: .*no regressor for point_to_point"):
        compare_runs(estimator, [RUN])


def test_a_mean_needs_every_error() -> None:
    assert mean_absolute([0.1, -0.3]) == pytest.approx(0.2)
    assert mean_absolute([0.1, None]) is None
    assert mean_absolute([]) is None
