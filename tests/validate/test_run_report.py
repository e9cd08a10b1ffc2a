"""Figures of `validate run` from steps whose times are known by hand."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kernelcast.cli.validate_run import show_run
from kernelcast.runtime import Estimator
from kernelcast.store import MeasuredStep, Run
from kernelcast.validate.run import predict_jobs
from kernelcast.validate.run_config import RunConfig
from kernelcast.validate.run_report import ComparedJob, RunReport
from kernelcast.validate.run_steps import layout_columns, operator_parts, round_minima_s, step_of
from tests.collector.training.test_job_result import LAYOUT, rank, result

DOCUMENT = {
    "models": {
        "tiny": {
            "hidden_size": 32, "sequence_length": 16, "attention_heads": 4, "layers": 3, "vocabulary_size": 200,
        }
    },
    "defaults": {"model": "tiny", "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2},
    "runs": [{"pp": 1}, {"pp": 2}, {"pp": 1, "dp": 2, "recompute": "full", "schedule": "gpipe"}],
}  # fmt: skip
LARGE = 1.0
Times = Sequence[Sequence[float]]


@pytest.fixture
def compared(make_bundle: Callable[..., Path]) -> Callable[..., ComparedJob]:
    config = RunConfig.of(DOCUMENT, folder=Path(), dtype="float32")
    predicted = predict_jobs(config, Estimator.load(make_bundle()))

    def make(number: int, times: Times, components: Sequence[Mapping[str, float]] = ({}, {})) -> ComparedJob:
        job = config.jobs[number]
        steps = [
            MeasuredStep.from_repetitions(
                run_id="run", repetitions_s=one, model=asdict(job.model), **layout_columns(job.parallelism),
                dtype=job.dtype, options={"rounds": 2}, components_s=parts, reference_us=10.0 + place,
                measured_at=f"2026-01-0{place + 1}T00:00:00+00:00",
            )
            for place, (one, parts) in enumerate(zip(times, components, strict=True))
        ]  # fmt: skip
        simulated, closed = predicted[job]
        return ComparedJob(job=job, simulated=simulated, closed_form=closed, steps=tuple(steps))

    return make


def test_the_fastest_of_all_repetitions_is_what_counts(compared: Callable[..., ComparedJob]) -> None:
    job = compared(0, [[4e-3, 6e-3, 8e-3, 5e-3], [5e-3, 5.2e-3, 5.4e-3, 5.6e-3]])
    assert (job.minimum_s, job.median_s, job.p10_s) == pytest.approx((4e-3, 5.3e-3, 4.3e-3))
    assert (job.error, job.closed_form_error) == pytest.approx(
        (job.simulated.step_time_s / 4e-3 - 1, job.closed_form.step_time_s / 4e-3 - 1)
    )
    # Minima of rounds of two: 4, 5, 5 and 5.4 ms.
    assert job.noise == pytest.approx(5.4 / 4 - 1)
    document = job.to_dict()
    assert [one["steps"] for one in document["repetitions"]] == [4, 4]
    assert [one["error"] for one in document["repetitions"]] == pytest.approx(
        [job.error, job.simulated.step_time_s / 5e-3 - 1]
    )
    assert (document["traced_s"], document["traced_gaps_s"]) == (None, None)
    assert (document["measured_s"], document["inside"]) == (4e-3, job.simulated.covers(4e-3))
    alone = replace(job, steps=(replace(job.steps[0], repetitions_s=(4e-3,)),))
    assert alone.noise is None  # a single round


def test_rounds_are_of_equal_length_and_the_last_may_be_shorter() -> None:
    job = RunConfig.of(DOCUMENT, folder=Path(), dtype="float32").jobs[0]
    fields = {"run_id": "run", "model": {}, **layout_columns(job.parallelism), "dtype": "float32"}
    times = [5.0, 4.0, 3.0, 2.0, 1.0]
    for rounds, minima in ((0, [1.0]), (1, [1.0]), (2, [3.0, 1.0]), (5, times)):
        step = MeasuredStep.from_repetitions(repetitions_s=times, options={"rounds": rounds}, **fields)
        assert round_minima_s(step) == minima
    step = MeasuredStep.from_repetitions(repetitions_s=times, **fields)
    assert round_minima_s(step) == [1.0]


def test_components_and_operators_are_those_of_the_quietest_repetition(
    compared: Callable[..., ComparedJob],
) -> None:
    components: list[Mapping[str, float]] = [
        {"Encoder_Fwd": 3e-4, "operator gemm/qkv backward": 6e-5, "kernel a name backward": 4e-5,
         "kernel idle passes forward": 2e-5, "operator": 9.0, "other one forward": 9.0},
        {"Encoder_Fwd": 2e-4, "operator gemm/qkv backward": 9e-5, "kernel idle passes forward": 1e-5},
    ]  # fmt: skip
    job = compared(0, [[4e-3] * 2, [5e-3] * 2], components)
    assert [(part.name, part.known) for part in operator_parts(job.steps[0])] == [
        ("gemm/qkv", True), ("a name", False), ("idle passes", False)
    ]  # fmt: skip
    rows = {name: (predicted_s, measured_s) for name, predicted_s, measured_s in job.components()}
    assert rows["Encoder_Fwd"][1] == 2e-4
    assert rows["Overall"] == (job.simulated.step_time_s, 4e-3)
    assert rows["Encoder_Bwd"] == (job.simulated.components.to_dict()["Encoder_Bwd"], None)
    document = job.to_dict()
    errors = {one["name"]: one["error"] for one in document["components"]}
    assert (errors["Overall"], errors["Encoder_Bwd"]) == (pytest.approx(job.error), None)
    measured = {
        one["operator"]: (one["measured_s"], one["share"])
        for one in document["operators"]
        if one["measured_s"]
    }
    assert measured == {
        "gemm/qkv": (6e-5, pytest.approx(6 / 11)), "a name": (4e-5, pytest.approx(4 / 11)),
        "idle passes": (1e-5, pytest.approx(1 / 11)),
    }  # fmt: skip


@pytest.fixture
def report(compared: Callable[..., ComparedJob]) -> RunReport:
    jobs = (compared(0, [[4e-3] * 2, [LARGE] * 2]), compared(1, [[LARGE] * 2, [5e-3] * 2]))
    return RunReport(jobs=jobs, hardware="here", software="torch", same_hardware=True)


def test_a_report_adds_up_its_jobs(report: RunReport) -> None:
    errors = [abs(one.error) for one in report.jobs]
    assert report.mean_abs_error == pytest.approx(sum(errors) / 2)
    assert abs(report.worst.error) == max(errors) > min(errors)
    assert report.reference_spread == pytest.approx(0.1)
    assert report.inside == sum(bool(one.inside) for one in report.jobs)
    assert replace(report, jobs=report.jobs[:1]).inside == int(bool(report.jobs[0].inside))
    first, second = report.of_repetitions()
    far = [abs(one.simulated.step_time_s / LARGE - 1) for one in report.jobs]
    assert first == pytest.approx(((errors[0] + far[1]) / 2, max(errors[0], far[1])))
    assert second == pytest.approx(((far[0] + errors[1]) / 2, max(far[0], errors[1])))
    document = report.to_dict()
    assert document["measured_at"].startswith("2026-01-02")
    assert document["noise"]["steps"] == pytest.approx((LARGE / 4e-3 + LARGE / 5e-3) / 2 - 1)
    assert document["noise"]["largest"] == pytest.approx(LARGE / 4e-3 - 1)
    assert document["worst_error"] == report.worst.error
    bare = [
        replace(one, steps=tuple(replace(step, reference_us=None) for step in one.steps))
        for one in report.jobs
    ]
    assert replace(report, jobs=tuple(bare)).reference_spread == 0.0


def test_operators_hold_what_was_predicted_and_what_was_traced(compared: Callable[..., ComparedJob]) -> None:
    components: list[Mapping[str, float]] = [
        {
            "operator gemm/qkv backward": 6e-5,
            "kernel a name backward": 4e-5,
            "kernel idle passes forward": 2e-5,
        },
        {"operator gemm/qkv backward": 9e-5, "kernel idle passes forward": 1e-5},
    ]
    job = compared(0, [[4e-3] * 2, [5e-3] * 2], components)
    rows = job.operators()
    lengths = [max(row.measured_s, row.predicted_s) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    of = {(row.name, row.direction): row for row in rows}
    qkv, unknown = of["gemm/qkv", "backward"], of["a name", "backward"]
    # Three layers and two micro-batches; 10 µs for either gradient.
    assert (qkv.calls, qkv.predicted_s, qkv.measured_s) == (6, pytest.approx(1.2e-4), 6e-5)
    assert qkv.error == pytest.approx(1.0)
    assert qkv.share == pytest.approx(6 / 11)
    assert (unknown.calls, unknown.known, unknown.error) == (0, False, None)
    assert (unknown.to_dict()["measured_us_per_call"], unknown.to_dict()["predicted_us_per_call"]) == (
        None,
    ) * 2
    assert qkv.to_dict()["measured_us_per_call"] == pytest.approx(10)
    assert sum(row.share for row in rows) == pytest.approx(1)
    predicted_s = sum(row.predicted_s for row in rows)
    assert predicted_s == pytest.approx(job.simulated.step_time_s)
    # Of one process: the quietest traced step and its gaps.
    assert job.traced == pytest.approx((1e-4, 1e-5))
    assert compared(1, [[4e-3] * 2, [5e-3] * 2], components).traced is None


def test_a_report_in_words(
    compared: Callable[..., ComparedJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the letter, but intervals: `run_report.txt`, which WRITE_RUN_REPORT=1 writes again."""
    monkeypatch.setenv("COLUMNS", "110")
    traced = {"Encoder_Fwd": 2e-4, "Overall": 4e-3, "operator gemm/qkv backward": 6e-5, "operator gelu forward": 3e-5,
              "kernel a name backward": 4e-5, "kernel idle passes forward": 2e-5,
              **{f"kernel short {number} forward": 5e-7 for number in (1, 2)}}  # fmt: skip
    jobs = (
        compared(0, [[4e-3, 6e-3], [5e-3, 5e-3]], (traced, traced)),
        compared(1, [[7e-3, 6e-3], [5e-3, 8e-3]]),
        compared(2, [[9e-3] * 2, [8e-3] * 2]),
    )
    report = RunReport(jobs=jobs, hardware="here", software="torch", same_hardware=False)
    show_run(report, with_operators=True)
    once = [replace(one, steps=(replace(one.steps[0], repetitions_s=(4e-3,)),)) for one in jobs]
    show_run(replace(report, jobs=tuple(once), same_hardware=True))
    printed = re.sub(r"(\d of \d fastest|inside  |outside )", "#", capsys.readouterr().out)
    text = Path(__file__).with_name("run_report.txt")
    if "WRITE_RUN_REPORT" in os.environ:
        text.write_text(printed, encoding="utf-8")
    assert printed == text.read_text(encoding="utf-8")


def test_operators_and_kernels_of_a_step_are_told_apart() -> None:
    traced = rank(operators=[["gemm", "forward", True, [[30.0]]], ["a kernel", "once", False, [[10.0]]]])
    run = Run(
        compute_id="0" * 32, software_id="0" * 32, command="validate run", started_at="2026-01-01T00:00:00Z"
    )
    step = step_of(run, result(LAYOUT, traced), 0, None, finished=True)
    assert [(one.name, one.direction, one.known, one.step_s) for one in operator_parts(step)] == [
        ("gemm", "forward", True, 30e-6), ("a kernel", "once", False, 10e-6),
    ]  # fmt: skip
    assert step.options["repetition"] == 0
