"""`kernelcast compare`: logs, real runs of two processes with a cause put into each, and what is kept."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.store import Database, IngestedTrace, MeasuredStep, Prediction
from kernelcast.validate.runs import RunsFile
from tests.cli.printed import ended, printed

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = ("--dp", 2, "--micro-batch", 2, "--micro-batches", 1, "--zero", 0)
# docs/training_step.py, smaller, with one thing changed in it: many times longer than what other work on the machine
# adds to a step.
DRIVER = """
import importlib.util, os, subprocess, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

found = importlib.util.spec_from_file_location("training_step", sys.argv[1])
script = importlib.util.module_from_spec(found)
found.loader.exec_module(script)
script.D, script.LAYERS, script.LENGTH, script.VOCABULARY = 64, 2, 128, 500
change, rank = sys.argv[3], int(os.environ["RANK"])
work = lambda: None
if change == "host":
    work = lambda: time.sleep(1)
if change == "all_reduce":
    work = lambda: dist.all_reduce(torch.ones(30_000_000))
if change == "rank" and rank == 1:
    forward = script.Block.forward
    def again(self, x):
        with torch.no_grad():
            for _ in range(150):
                forward(self, x)
        return forward(self, x)
    script.Block.forward = again
if change == "attention":
    def unfused(q, k, v, is_causal):
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        for _ in range(100):
            found = torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v
        return found
    script.functional.scaled_dot_product_attention = unfused
script.train(Path(sys.argv[2]), work)
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    return printed(capsys, "compare", *arguments, status=status)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "traced.toml"
    path.write_text(
        'name = "traced"\nhidden_size = 64\nsequence_length = 128\nattention_heads = 4\nlayers = 2\n'
        'vocabulary_size = 500\nnorm = "layer_norm"\nrotary = false\nlearned_positions = 128\n'
    )
    return path


@pytest.fixture
def asked(make_bundle: Callable[..., Path], model: Path) -> tuple[object, ...]:
    """Bundle, model and layout; every operator takes a millisecond or so."""
    times = dict.fromkeys(("gemm", "layer_norm", "flash_attention", "cross_entropy"), 300.0)
    return ("--bundle", make_bundle(times), "--model", model, *LAYOUT)


def train(folder: Path, change: str) -> Path:
    driver = folder / "driver.py"
    driver.write_text(DRIVER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(ROOT / "docs" / "training_step.py")
    traces = folder / "traces"
    subprocess.run(
        [*torchrun, str(driver), script, str(traces), change],
        check=True,
        capture_output=True,
        timeout=3000,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return traces


def causes(capsys: pytest.CaptureFixture[str], traces: Path, asked: tuple[object, ...]) -> dict[str, Any]:
    document = json.loads(run(capsys, traces, *asked, "--json"))
    assert document["format"] == "kernelcast.compared_step/1"
    assert document["ranks"] == [0, 1]
    return {one["kind"]: one for one in reversed(document["causes"])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rank", "rank 1 arrives last in "),
        ("host", "gaps of the host"),
        ("all_reduce", "exposed all_reduce: "),
        ("attention", "attention ran as products with a softmax, but was predicted as flash_attention"),
    ],
)
def test_a_cause_that_is_put_into_a_real_run_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...], change: str, words: str
) -> None:
    found = causes(capsys, train(tmp_path, change), asked)
    assert found[change]["line"].startswith(words)
    if change == "all_reduce":
        assert " MiB a step, predicted: " in found[change]["line"]
    if change == "host":
        assert found[change]["excess_s"] > 0.8


@pytest.mark.slow
def test_a_real_run_as_it_is_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...]
) -> None:
    traces = train(tmp_path, "nothing")
    found = causes(capsys, traces, asked)
    assert "attention" not in found or "ran as" not in found["attention"]["line"]
    assert "all_reduce" not in found or "calls with" not in found["all_reduce"]["line"]
    file, database = tmp_path / "ours.toml", tmp_path / "bench.db"
    text = run(capsys, traces, *asked, "--keep", file, "--db", database)
    assert text.startswith("measured ")
    last = text.split("part of the step")[1].split("\n\n")[0].splitlines()[-1].split()
    document = json.loads(run(capsys, traces, *asked, "--json"))
    assert last[0] == "step"
    for cell, name in zip(last[1:3], ("measured_s", "predicted_s"), strict=True):
        total_ms = 1e3 * sum(part[name] or 0.0 for part in document["parts"])
        assert float(cell.replace(",", "")) == pytest.approx(total_ms, abs=0.01)
    [kept] = RunsFile.read(file).runs
    assert (kept.model.hidden_size, kept.parallelism.dp, kept.parallelism.zero) == (64, 2, 0)
    with Database.open(database, read_only=True) as stored:
        [step] = stored.records(MeasuredStep)
        [prediction] = stored.records(Prediction)
        assert len(stored.records(IngestedTrace)) == 2
    assert step.min_s == pytest.approx(kept.measured_s)
    assert prediction.step_id == step.id
    assert (step.options["profiled"], step.options["zero"], step.options["layer_split"]) == (True, 0, "even")
    again = run(capsys, database, *asked, "--db", database)
    assert again.splitlines()[:3] == text.splitlines()[:3]
    with Database.open(database, read_only=True) as stored:
        assert len(stored.records(MeasuredStep)) == 1


def log_of(path: Path, step_ms: float) -> Path:
    path.write_text(f"elapsed time per iteration (ms): {step_ms} |\n" * 6)
    return path


def test_a_log_tells_whether_the_run_is_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...]
) -> None:
    log = log_of(tmp_path / "train.log", 1000)
    document = json.loads(run(capsys, "--log", log, *asked, "--json"))
    predicted_ms = document["predicted_s"] * 1e3
    assert (document["verdict"], document["framework"]) == ("slow", "Megatron-LM")
    assert document["difference"] == pytest.approx(1000 / predicted_ms - 1)
    lines = run(capsys, "--log", log_of(log, predicted_ms), *asked).splitlines()
    assert lines[0].endswith("Megatron-LM's log: median of 4 steps, " + lines[0].split(", ")[-1])
    assert lines[2] == "verdict    as predicted: +0.0% against the prediction, inside its interval"
    lines = run(capsys, "--log", log_of(log, predicted_ms / 100), *asked).splitlines()
    assert lines[2] == "verdict    fast: -99.0% against the prediction, below its interval"


def test_a_logged_step_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...]
) -> None:
    file = tmp_path / "ours.toml"
    run(capsys, "--log", log_of(tmp_path / "train.log", 1000), *asked, "--keep", file, "--site", "Here")
    kept = RunsFile.read(file)
    assert (kept.site, kept.source, kept.runs[0].measured_s) == ("Here", "train.log", 1.0)


def test_a_log_has_no_trace_to_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...]
) -> None:
    log = log_of(tmp_path / "train.log", 10)
    printed = run(capsys, "--log", log, "--db", tmp_path / "x.db", *asked, status=2)
    assert "--db stores steps with their traces, found no traces" in printed
    assert printed.count("\n") == 1


def trace_of(folder: Path, *operators: dict[str, Any], world_size: int = 2) -> Path:
    """A trace of one step with calls of the host."""
    shared = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
    step = {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 2000, **shared}
    calls = [
        {**shared, "cat": "cpu_op", "ts": 10 + 200 * place, "dur": 100, **one}
        for place, one in enumerate(operators)
    ]
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": world_size},
        "traceEvents": [step, *calls],
    }
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    return path


def product(rows: int, inner: int, columns: int) -> dict[str, Any]:
    dims = {
        "External id": 1,
        "Input Dims": [[rows, inner], [inner, columns]],
        "Input type": ["float", "float"],
    }
    return {"name": "aten::mm", "args": dims}


@pytest.mark.parametrize(
    ("world_size", "message"),
    [
        (
            2,
            "found no backward pass, as in inference; found 0% of the predicted matrix products, by their shapes;",
        ),
        (4, "found traces of 4 processes, the layout has 2; found no backward pass"),
    ],
)
def test_what_is_not_the_predicted_step_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    asked: tuple[object, ...],
    world_size: int,
    message: str,
) -> None:
    trace = trace_of(tmp_path, product(64, 32, 8), world_size=world_size)
    refusal = run(capsys, trace, *asked, status=1)
    assert message in refusal
    assert "expected traces of a training step of traced on 2 GPUs" in refusal
    assert refusal.count("\n") == 1


def test_a_trace_without_shapes_is_compared_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...]
) -> None:
    backward = {"name": "autograd::engine::evaluate_function: MmBackward0", "args": {"Sequence number": 1}}
    trace = trace_of(tmp_path, {"name": "aten::mm", "args": {"Sequence number": 1}}, backward)
    document = json.loads(run(capsys, trace, *asked, "--json"))
    assert any("without shapes (record_shapes=True)" in note for note in document["notes"])


def test_traces_without_steps_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[object, ...]
) -> None:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 100,
        "args": {},
    }
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert "its traces mark no step on all ranks" in run(capsys, trace, *asked, status=1)


STATED = ("--hardware", "h100-sxm", "--model", "llama-3.1-8b", "--gpus", 8, "--zero", 3, "--micro-batch", 2)
STATED = (*STATED, "--micro-batches", 1, "--recompute", "full")


def stated(capsys: pytest.CaptureFixture[str], *speed: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(capsys, *speed, *STATED, "--json"))
    return document


def test_a_speed_is_compared_in_any_unit(capsys: pytest.CaptureFixture[str]) -> None:
    by_rate = stated(capsys, "--tokens-per-second", 5000)
    step_s = 2 * 8192 / 5000
    by_step = stated(capsys, "--step-time", step_s)
    assert by_rate == by_step
    assert by_rate["measured_s"] == pytest.approx(step_s)
    low_s, high_s = by_rate["interval_s"]
    for measured_s, share in ((low_s, 0.05), (by_rate["predicted_s"], 0.5), (high_s, 0.95)):
        assert stated(capsys, "--step-time", measured_s)["slower_than"] == pytest.approx(share)
    assert stated(capsys, "--step-time", 2 * high_s)["verdict"] == "slow"


def test_published_steps_of_the_model_stand_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    [torchtitan] = [
        one for one in stated(capsys, "--step-time", 3)["published"] if one["software"] == "torchtitan"
    ]
    low, high = torchtitan["tokens_per_s_per_gpu"]
    runs = [
        one
        for one in RunsFile.read(ROOT / "validate" / "torchtitan-h100.toml").runs
        if one.kind == "16 bit, dense"
    ]
    runs = [one for one in runs if one.model.name == "llama-3.1-8b" and one.model.sequence_length == 8192]
    rates = [
        one.parallelism.samples_per_update * 8192 / one.measured_s / one.parallelism.world_size
        for one in runs
    ]
    assert (low, high, torchtitan["steps"]) == (min(rates), max(rates), len(rates))
    for rate, side in ((low * 0.9, "slower than"), ((low + high) / 2, "among"), (high * 1.1, "faster than")):
        assert f", is {side} these" in run(capsys, "--tokens-per-second", rate, *STATED)
    # A usual speed that is slow for the prediction: what it lacks is the software.
    hint = "--framework torchtitan sets its defaults and its stack"
    usual = ("--tokens-per-second", (low + high) / 2, *STATED)
    assert hint in run(capsys, *usual)
    assert hint not in run(capsys, *usual, "--framework", "torchtitan")


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (
            ("--tokens-per-second", 500_000),
            "expected the tokens per second of one GPU, or the time of a whole step",
        ),
        (("--step-time", 2, "--dp", 4), "8 devices, expected"),
        (("--step-time", 2, "--tp", 3), "8 devices, expected a multiple of"),
    ],
)
def test_a_wrong_speed_is_one_line(
    capsys: pytest.CaptureFixture[str], speed: tuple[object, ...], words: str
) -> None:
    [line] = run(capsys, *speed, *STATED, status=2).splitlines()
    assert words in line


def test_the_model_of_a_layout_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.toml"
    table = '[model]\nname = "llama3"\nflavor = "{}"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
    file.write_text(table.format("8B"))
    asked = ("compare", "--step-time", "1", "--layout", file, "--hardware", "h100-sxm", "--gpus", "8")
    assert ended(*asked) == 0
    shown = capsys.readouterr()
    assert "at 500 W; " in " ".join(shown.out.split())
    assert "model." not in shown.err
    file.write_text(table.format("9X"))
    assert ended(*asked) == 2
    assert "torchtitan settings do not describe a model: give --model" in capsys.readouterr().err


def test_a_utilization_is_percent(capsys: pytest.CaptureFixture[str]) -> None:
    command = "compare --mfu {} --hardware h100-sxm --model llama-3-8b --micro-batch 1 --micro-batches 1"
    for found in ("0.55", "1", "0", "120", "x"):
        assert ended(*command.format(found).split()) == 2
        expected = f"--mfu is '{found}', expected percent above 1, at most 100, such as 43"
        assert capsys.readouterr().err == f"kernelcast: error: {expected}\n"
    outputs = []
    for found in ("45", "45%"):
        assert ended(*command.format(found).split()) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
