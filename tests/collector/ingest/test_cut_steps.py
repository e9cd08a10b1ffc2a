"""Steps that the recording or the file cuts: real traces of torch, and one as of a GPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile, record_function

from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.store.trace_difference import compare_traces
from kernelcast.store.trace_export import write_trace
from kernelcast.store.trace_report import trace_report, traced_runs
from kernelcast.validate.compare.traced_steps import traced_steps
from tests.collector.ingest.conftest import training_step


def record(path: Path, *, steps: int, whole: int) -> Path:
    """Steps of four products; in those after the first `whole` the recording ends after one."""
    matrix = torch.randn(64, 64)
    recorder = profile()
    recorder.start()
    for step in range(steps):
        annotation = record_function(f"iteration {step}")
        annotation.__enter__()
        for _ in range(4 if step < whole else 1):
            torch.mm(matrix, matrix)
        if step < whole:
            annotation.__exit__(None, None, None)
    recorder.stop()
    recorder.export_chrome_trace(str(path))
    return path


def test_a_step_that_the_recording_cuts_is_in_no_mean(tmp_path: Path) -> None:
    path = record(tmp_path / "cut.json", steps=4, whole=3)
    with opened_traces([path]) as database:
        [run] = traced_runs(database)
        steps = trace_report(database, run).steps
        assert [(step["step"], step["in_mean"]) for step in steps if step["step"]] == [
            ("iteration 0", 0), ("iteration 1", 1), ("iteration 2", 1), ("iteration 3 (cut)", 0),
        ]  # fmt: skip
        found = compare_traces(database, run, database, run)
        assert found.one_steps == 2
        [products] = [one for one in found.kernels if one.name == "aten::mm"]
        assert products.one_launches == 4
        assert traced_steps(database, run).typical in ("iteration 1", "iteration 2")
        write_trace(database, run, tmp_path / "again.json")
    with opened_traces([tmp_path / "again.json"]) as database:
        [run] = traced_runs(database)
        assert [step["step"] for step in trace_report(database, run).steps][3] == "iteration 3 (cut)"


@pytest.mark.parametrize(("whole", "counted"), [(0, "iteration 0 (cut)"), (1, "iteration 0")])
def test_if_no_other_step_is_whole_the_best_one_counts(tmp_path: Path, whole: int, counted: str) -> None:
    with opened_traces([record(tmp_path / "cut.json", steps=whole + 1, whole=whole)]) as database:
        [run] = traced_runs(database)
        report = trace_report(database, run)
        assert [step["step"] for step in report.steps if step["in_mean"]] == [counted]
        assert sum(report.parts_ms.values()) > 0
        assert traced_steps(database, run).typical == counted


def in_means(path: Path) -> list[tuple[str, int]]:
    """Steps of a truncated file, and which are in its means."""
    with opened_traces([path], is_partial=True) as database:
        [run] = traced_runs(database)
        return [(step["step"], step["in_mean"]) for step in trace_report(database, run).steps if step["step"]]


def test_a_step_in_which_a_file_of_a_cpu_ends_is_in_no_mean(tmp_path: Path) -> None:
    text = record(tmp_path / "whole.json", steps=4, whole=4).read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.rindex('"aten::mm"')])
    assert in_means(cut) == [
        ("iteration 0", 0), ("iteration 1", 1), ("iteration 2", 1), ("iteration 3 (cut)", 0),
    ]  # fmt: skip


def test_steps_whose_kernels_a_truncated_file_lacks_are_in_no_mean(
    make_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Kineto writes kernels after all calls, buffer by buffer: the file ends within the second of four steps."""
    calls, kernels = list[Any](), list[Any]()
    for number in (2, 3, 0, 1):
        step = training_step(1000.0 + 2000 * number)
        step.call("aten::mm")  # of no elements: some calls of this kind launch no kernel
        step.host("user_annotation", f"ProfilerStep#{number}", 999.0 + 2000 * number, 1900, 1, {})
        for event in step.events:
            (kernels if event["cat"] in ("kernel", "cuda_runtime") else calls).append(event)
            event["args"] = {
                key: value + 1000 * number if key in ("correlation", "External id") else value
                for key, value in event["args"].items()
            }
    text = make_file("whole.json", events=calls + kernels).read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.rindex('"gelu"')])
    assert in_means(cut) == [
        ("ProfilerStep#0", 0), ("ProfilerStep#1 (cut)", 0), ("ProfilerStep#2", 1), ("ProfilerStep#3", 1),
    ]  # fmt: skip
    cut.write_text(json.dumps(json.loads(text)) + " ")
    assert [counts for _, counts in in_means(cut)] == [0, 1, 1, 1]


def test_steps_as_far_from_each_other_as_groups_are_many(
    make_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Three whole steps of 49: that one takes longer is chance, that all do is not."""

    def made(name: str, *durations_us: float) -> Path:
        step = training_step()
        step.events.clear()
        for number in range(49):
            is_whole = number % 16 == 0
            step.host(
                "user_annotation", f"step {number}" + " (cut)" * (not is_whole), 1000.0 * number, 999, 1, {}
            )
            step.host_us, step.device_us = 1000.0 * number + 1, 1000.0 * number + 100
            step.call(
                "aten::mm", kernels=(("mm", 1.0 if number % 16 else (5.0, *durations_us)[number // 16]),)
            )
        return make_file(name, events=step.events)

    usual = made("usual.json", 400.0, 500.0, 401.0)
    for name, durations_us, kinds in (
        ("chance.json", (402.0, 403.0, 700.0), []),
        ("slow.json", (702.0, 703.0, 800.0), ["device"]),
    ):
        with opened_traces([usual]) as one, opened_traces([made(name, *durations_us)]) as two:
            found = compare_traces(one, *traced_runs(one), two, *traced_runs(two))
        assert found.one_steps == 3
        assert [cause.kind for cause in found.causes if cause.kind != "host"] == kinds
