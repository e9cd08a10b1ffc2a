"""Factors from measured steps: what is wrong is found, what is right stays, steps left out tell whether it helps."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import (
    Cluster,
    DataError,
    Estimator,
    ModelConfig,
    Parallelism,
    UsageError,
    read_bundle,
)
from kernelcast.runtime.answers.bundle_check import check_bundle
from kernelcast.runtime.bundle.calibration import CLASSES, Calibration
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS, Direction, OperatorClass
from kernelcast.validate.calibration import (
    GROUPS,
    calibrate,
    left_out_errors,
    predicted_steps,
    usual_parameters,
    write_calibrated,
)
from kernelcast.validate.runs import MeasuredRun

Make = Callable[..., Path]
NODES = Cluster(gpus_per_node=4)
COMPUTE, COMMUNICATION = OperatorClass.COMPUTE, OperatorClass.COMMUNICATION
with_bundle = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=10
)


@pytest.fixture
def bundle(make_bundle: Make, linear_model: Callable[..., bytes]) -> Bundle:
    """Compute takes longer with wide models, memory with long sequences, a collective with either."""
    per_feature = {
        OperatorClass.COMPUTE: ("k", "head_size", 0.5),
        OperatorClass.MEMORY: ("l", "tokens", 0.2),
        OperatorClass.COMMUNICATION: ("entries", "entries", 1e-3),
        OperatorClass.OPTIMIZER: ("parameters", "parameters", 1e-3),
    }
    times = {}
    for operator in OPERATORS.values():
        *names, slope = per_feature[operator.operator_class]
        weights = [slope if feature in names else 0.0 for feature in operator.features]
        times[operator.name] = linear_model(weights, 5.0, low=0.97, high=1.03)
    return read_bundle(make_bundle(times, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)]))


def layouts(count: int = 10) -> list[tuple[ModelConfig, Parallelism]]:
    """Steps of different models and layouts, as a site has them."""
    found = []
    for index in range(count):
        model = ModelConfig(
            name=f"model-{index}",
            hidden_size=(64, 512, 128, 256)[index % 4],
            sequence_length=(512, 64, 128)[index % 3],
            attention_heads=8,
            layers=6,
            vocabulary_size=1000,
            attention="fused_softmax",
        )
        tp, dp = ((1, 1), (4, 1), (1, 4), (2, 2), (2, 1))[index % 5]
        layout = Parallelism(
            pp=1 + index % 2, tp=tp, dp=dp, micro_batch=1 + index % 2, micro_batches=4, recompute="full"
        )
        found.append((model, layout))
    return found


def runs(
    bundle: Bundle, log_factors: Sequence[float], *, noise: Sequence[float] = (), count: int = 10
) -> Any:
    """Steps of a machine whose classes take exp(log_factors) times as long as the bundle says."""
    estimator = Estimator(bundle)
    plain = [
        MeasuredRun(
            label=model.name,
            model=model,
            parallelism=layout,
            cluster=NODES,
            measured_s=estimator.predict(model=model, parallelism=layout, cluster=NODES).step_time_s,
        )
        for model, layout in layouts(count)
    ]
    steps = predicted_steps(bundle, plain, "simulate")
    noise = noise or [0.0] * count
    return tuple(
        replace(step.run, measured_s=float(step.step_s(np.array([log_factors]))[0]) * math.exp(one))
        for step, one in zip(steps, noise, strict=True)
    )


def fitted(bundle: Bundle, measured: Sequence[MeasuredRun], **options: Any) -> Calibration:
    timeline = options.pop("timeline", "simulate")
    steps = predicted_steps(bundle, measured, timeline)
    return calibrate(steps, source="a test", source_digest="ab", **options)


def test_a_class_that_is_measured_too_fast_is_found(bundle: Bundle) -> None:
    found = fitted(bundle, runs(bundle, [math.log(1.1), 0.0, 0.0, 0.0]))
    assert found.parameters == 4
    assert found.factors[COMPUTE] == pytest.approx(1.1, abs=0.01)
    assert found.factors[OperatorClass.MEMORY] == pytest.approx(1.0, abs=0.01)
    assert found.factors[COMMUNICATION] == pytest.approx(1.0, abs=0.01)
    assert found.helps is True
    assert found.mean_error_before > 0.02
    assert (found.mean_error_left_out or 1.0) < 0.004
    assert all(low < found.factors[one] < high for one, (low, high) in found.intervals.items())


def test_noise_is_not_followed(bundle: Bundle) -> None:
    noise = [0.02, -0.03, 0.01, 0.03, -0.02, 0.0, -0.01, 0.02, -0.03, 0.01]
    found = fitted(bundle, runs(bundle, [math.log(1.1), 0.0, math.log(1.1), 0.0], noise=noise))
    assert found.factors[COMPUTE] == pytest.approx(1.1, abs=0.04)
    # These steps show less of it: followed in part, with a wider spread.
    assert 1.02 < found.factors[COMMUNICATION] < 1.1
    for one in (COMPUTE, COMMUNICATION):
        low, high = found.intervals[one]
        assert low < 1.1 < high
    assert 0.01 < found.residual < 0.05
    assert found.helps is True


@pytest.mark.slow
@with_bundle
@given(
    noise=st.lists(st.floats(-0.05, 0.05), min_size=5, max_size=5),
    parameters=st.sampled_from([1, 2, 3, 4]),
    timeline=st.sampled_from(["simulate", "closed-form"]),
)
def test_whatever_the_steps_it_is_finite_shrunk_and_the_same_each_time(
    bundle: Bundle, noise: list[float], parameters: int, timeline: Any
) -> None:
    measured = runs(bundle, [0.0] * 4, noise=noise, count=5)
    found = fitted(bundle, measured, parameters=parameters, timeline=timeline)
    assert found == fitted(bundle, measured, parameters=parameters, timeline=timeline)
    assert found == Calibration.from_dict(found.to_dict())
    # The prior pulls towards no correction: nothing beyond what the largest error asks for.
    largest = max(abs(math.log1p(run.error_before)) for run in found.runs)
    assert all(abs(value) <= 2 * largest + 1e-9 for value in found.log_factors)
    shared = {GROUPS[parameters][one] for one in CLASSES}
    assert len({(v, row) for v, row in zip(found.log_factors, found.log_spread, strict=True)}) <= len(shared)


def test_steps_predicted_right_change_nothing(bundle: Bundle) -> None:
    measured = runs(bundle, [0.0] * 4)
    for parameters in (1, 2, 3, 4):
        found = fitted(bundle, measured, parameters=parameters)
        assert found.log_factors == (0.0,) * 4
        assert found.mean_error_left_out == found.mean_error_before == 0.0
        assert found.helps is False


def test_few_steps_are_followed_little_more_are_followed_further(bundle: Bundle) -> None:
    factors = [math.log(1.1)] * 4
    logs = [
        fitted(bundle, runs(bundle, factors, count=count), parameters=1).log_factors[0]
        for count in (1, 3, 10)
    ]
    assert 0 < logs[0] < logs[1] < logs[2] < math.log(1.1)
    assert logs[0] < 0.7 * math.log(1.1)
    one = fitted(bundle, runs(bundle, factors, count=1))
    assert (one.parameters, one.helps, one.runs[0].error_left_out) == (1, None, None)
    assert [usual_parameters(count) for count in (1, 2, 3, 4, 5, 6, 8, 100)] == [1, 1, 1, 2, 2, 3, 4, 4]


def test_left_out_means_left_out(bundle: Bundle) -> None:
    measured = runs(bundle, [math.log(1.1), 0.0, 0.0, 0.0], count=6)
    errors = left_out_errors(predicted_steps(bundle, measured, "simulate"), 2)
    # The time of a step has no say in its own correction.
    doubled = (replace(measured[0], measured_s=2 * measured[0].measured_s), *measured[1:])
    [first, *_] = left_out_errors(predicted_steps(bundle, doubled, "simulate"), 2)
    assert errors[0] is not None
    assert first == pytest.approx((1 + errors[0]) / 2 - 1)


def test_steps_of_one_configuration_are_left_out_together(bundle: Bundle) -> None:
    [first, *others] = runs(bundle, [math.log(1.1), 0.0, 0.0, 0.0], count=4)
    # Said in other words: 4 devices are one node's, and the layers are spread as they would be anyway.
    layout = replace(first.parallelism, layer_counts=(first.model.layers,))
    again = replace(first, parallelism=layout, cluster=None, measured_s=1.01 * first.measured_s)
    alone, _ = (
        left_out_errors(predicted_steps(bundle, [one, *others], "simulate"), 2)[0] for one in (first, again)
    )
    found = fitted(bundle, [first, again, *others])
    assert alone is not None
    assert [run.error_left_out for run in found.runs[:2]] == pytest.approx([alone, (1 + alone) / 1.01 - 1])
    assert found.parameters == 2
    # Nothing else is left.
    same = fitted(bundle, [first, again, again, first])
    assert (same.parameters, same.helps, {run.error_left_out for run in same.runs}) == (1, None, {None})


@pytest.mark.parametrize(
    "changes",
    [{"cluster": Cluster(gpus_per_node=1)}, {"bucket_entries": 1000}, {"cluster": Cluster(gpus_per_node=2)}],
)
def test_other_nodes_and_buckets_are_other_configurations(bundle: Bundle, changes: dict[str, Any]) -> None:
    [step] = runs(bundle, [0.0] * 4, count=3)[2:]
    assert step.parallelism.dp == 4
    errors = left_out_errors(predicted_steps(bundle, [step, replace(step, **changes)], "simulate"), 1)
    assert None not in errors


def test_contradicting_steps_do_not_help(bundle: Bundle) -> None:
    measured = runs(bundle, [0.0] * 4, noise=[0.1, -0.1, 0.1, -0.1, 0.1, -0.1], count=6)
    found = fitted(bundle, measured)
    assert found.helps is False
    assert found.residual > 0.05


@pytest.mark.slow
def test_the_corrected_bundle_predicts_the_steps_and_is_sound(bundle: Bundle, tmp_path: Path) -> None:
    measured = runs(bundle, [math.log(1.1), 0.0, math.log(1.2), 0.0])
    found = fitted(bundle, measured)
    path = tmp_path / "corrected.kcast"
    digest = write_calibrated(path, bundle, found)
    content = path.read_bytes()
    assert write_calibrated(path, bundle, found) == digest
    assert path.read_bytes() == content
    assert check_bundle(path).bundle.digest == digest
    assert read_bundle(path).files == bundle.files
    estimator = Estimator.load(path)
    for run, said in zip(measured, found.runs, strict=True):
        estimate = estimator.predict(model=run.model, parallelism=run.parallelism, cluster=run.cluster)
        assert estimate.step_time_s / run.measured_s - 1 == pytest.approx(said.error_after, abs=1e-7)
        low_s, high_s = estimate.interval_s or (0.0, 0.0)
        assert low_s < run.measured_s < high_s
    # Calibrated again, a bundle starts from its models.
    assert fitted(read_bundle(path), measured) == found


def test_regressors_of_every_level_are_kept(bundle: Bundle, tmp_path: Path) -> None:
    [entry] = [one for one in bundle.manifest.regressors if one.key == ("gelu", Direction.FORWARD)]
    beside = replace(entry, file=entry.file.replace(".onnx", ".2-processes.onnx"), processes_per_node=2)
    levels = replace(bundle.manifest, regressors=(*bundle.manifest.regressors, beside))
    write_bundle(tmp_path / "levels.kcast", levels, {**bundle.files, beside.file: bundle.model(entry.key)})
    two = read_bundle(tmp_path / "levels.kcast")
    write_calibrated(tmp_path / "corrected.kcast", two, fitted(two, runs(two, [0.1] * 4)))
    corrected = read_bundle(tmp_path / "corrected.kcast")
    assert corrected.files == two.files
    assert corrected.manifest.regressors == two.manifest.regressors


@pytest.mark.parametrize("factor", [1e3, 10.01, 0.0999, 1e-3])
def test_a_step_in_another_unit_is_refused(bundle: Bundle, factor: float) -> None:
    [first, *others] = runs(bundle, [0.0] * 4)
    wrong = replace(first, label="odd", measured_s=factor * first.measured_s)
    said = rf"^run odd: measured_s is {wrong.measured_s:g}, predicted are {first.measured_s:.4g} s, expected at most a "
    with pytest.raises(UsageError, match=said + r"factor of 10 between them \(is it in seconds\?\)$"):
        predicted_steps(bundle, [*others, wrong], "simulate")


@pytest.mark.parametrize("measured_s", [5e-324, 1e9])
def test_the_least_and_the_largest_time_are_refused_alike(bundle: Bundle, measured_s: float) -> None:
    [run] = runs(bundle, [0.0] * 4, count=1)
    with pytest.raises(UsageError, match=r"^run model-0: measured_s is .*is it in seconds"):
        predicted_steps(bundle, [replace(run, measured_s=measured_s)], "simulate")


@pytest.mark.parametrize("factor", [9.9, 0.11])
def test_a_step_within_the_largest_factor_is_fitted(bundle: Bundle, factor: float) -> None:
    found = fitted(bundle, runs(bundle, [math.log(factor)] * 4, count=5))
    assert all(0 < value / math.log(factor) <= 1.01 for value in found.log_factors)


def test_what_cannot_be_predicted_names_the_run(bundle: Bundle, make_bundle: Make) -> None:
    [run, *others] = runs(bundle, [0.0] * 4)
    wide = replace(run, label="wide", parallelism=replace(run.parallelism, tp=3))
    with pytest.raises(UsageError, match=r"^run wide: tp is 3, expected a divisor of attention_heads"):
        predicted_steps(bundle, [run, wide], "simulate")
    poor = read_bundle(make_bundle(without=["all_reduce"], name="poor.kcast"))
    with pytest.raises(
        DataError, match=r"^run model-1: bundle .*poor\.kcast has no regressor for all_reduce"
    ):
        predicted_steps(poor, [run, *others], "simulate")
    with pytest.raises(UsageError, match=r"^a test: has no measured steps, expected at least one$"):
        calibrate([], source="a test", source_digest="ab")
    with pytest.raises(UsageError, match=r"^parameters is 5, expected"):
        fitted(bundle, [run], parameters=5)


def test_whole_calibrations(bundle: Bundle) -> None:
    """Figures to six digits: `whole_calibrations.txt`, which WRITE_WHOLE_CALIBRATIONS=1 pytest THIS_FILE writes."""
    lines: list[str] = []
    noise = [0.03, -0.02, 0.05, 0.0, -0.04, 0.01, 0.02, -0.01, 0.03, -0.05]
    for count, options in ((1, {}), (8, {}), (5, {"parameters": 2, "timeline": "closed-form"})):
        measured = runs(bundle, [0.1, -0.05, 0.02, 0.3], noise=noise[:count], count=count)
        found = fitted(bundle, measured, **options)
        lines.append(
            f"{found.timeline} {found.source} {found.source_digest} {found.measured_at} {found.parameters}"
        )
        values = [
            *found.log_factors,
            *(one for row in found.log_spread for one in row),
            found.residual,
            found.prior,
        ]
        lines.append(" ".join(f"{one:.6f}" for one in values))
        for run in found.runs:
            values += (errors := [run.error_before, run.error_left_out or 0.0, run.error_after])
            said = " ".join(f"{one:.6f}" for one in errors)
            lines.append(f"{run.label} {run.measured_s:.6g} {said} {run.error_left_out is None}")
        assert all(one == round(one, 9) for one in values)
    path = Path(__file__).with_name("whole_calibrations.txt")
    if "WRITE_WHOLE_CALIBRATIONS" in os.environ:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8").splitlines()
