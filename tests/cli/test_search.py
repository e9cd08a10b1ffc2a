"""`kernelcast search`: what it prints, as text and as JSON, and how it fails."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.cli.predict import predict
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from tests.cli.printed import ended, next_commands
from tests.cli.searching import arguments, document, run, small_model

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Path]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A model of 6 layers."""
    return small_model(tmp_path)


def test_a_length_that_is_only_the_longest_is_asked_for(bundle: Path, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "intermediate_size": 16,
        "vocab_size": 100,
        "max_position_embeddings": 131_072,
    }
    path = tmp_path / "long.json"
    path.write_text(json.dumps(config))
    said = f"model file {path}: max_position_embeddings is 131072, the longest sequence that the model serves"
    asked = "expected sequence_length (--sequence-length) of training"
    error = run(bundle, path).exception
    assert isinstance(error, UsageError)
    assert str(error) == f"{said}, {asked}"
    values = document(bundle, path, "--sequence-length", "16")
    assert "model_notes" not in values
    # A prediction says what it took.
    layout = "--micro-batch 1 --micro-batches 1"
    arguments = ["--bundle", str(bundle), "--model", str(path), *layout.split(), "--json"]
    result = CliRunner().invoke(predict, arguments)
    note = f"{said}; it is predicted unless sequence_length is given"
    assert " ".join(result.stderr.split()) == f"warning: {note}"
    assert json.loads(result.stdout)["model_notes"] == [note]
    quiet = CliRunner().invoke(kernelcast, ["predict", *arguments, "--quiet"])
    assert " ".join(quiet.stderr.split()) == f"warning: {note}"


def test_readable(bundle: Path, model_file: Path) -> None:
    result = run(bundle, model_file, "--top", "3", "--pareto")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert re.fullmatch(r"step [\d.]+ ms, [\d,]+ tokens/s", lines[0])
    assert any(line.startswith("hardware  8 × ") and line.endswith("4 per node (given)") for line in lines)
    assert "given     16 samples per update; memory not limited" in lines
    best, front = lines.index("Best layouts"), lines.index("Pareto front of time and memory")
    assert [line.split()[0] for line in lines[best:front] if re.match(r" *\d+  ", line)] == ["1", "2", "3"]
    assert not [line for line in lines if line != line.rstrip()]
    best_alone, as_arguments = next_commands(result.output)
    typed = ["kernelcast", "search", *arguments(bundle, model_file, "--top", "3", "--pareto")]
    assert as_arguments == shlex.join([*typed, "--as", "megatron-lm"])
    # What is printed can be typed, and shows the same layout.
    shown = CliRunner().invoke(kernelcast, shlex.split(best_alone)[1:]).output
    assert shown.splitlines()[0] == lines[0]
    assert next(line for line in lines if line.startswith("layout ")) in shown
    assert "Pareto" not in run(bundle, model_file).output
    brief = run(bundle, model_file, "--quiet").output
    assert "warning" not in brief
    assert "next:" not in brief


def test_what_all_layouts_have_in_common_is_no_column(bundle: Path, model_file: Path) -> None:
    limits = ("--recompute", "full", "--zero", "1", "--sequence-parallel", "false", "--cp", "1")
    lines = run(bundle, model_file, *limits).output.splitlines()
    at = lines.index("all with recompute full, ZeRO 1, sequence parallel no")
    assert "cp" not in lines[at + 1].split()
    assert {"pp", "tp", "dp"} <= set(" ".join(lines[at + 1 : at + 3]).split())


def test_json(bundle: Path, model_file: Path) -> None:
    values = document(bundle, model_file, "--top", "5", "--gpu-memory", "72MB")
    assert values["format"] == "kernelcast.search/2"
    assert set(values) == {
        "format", "seconds", "layouts", "out_of_memory", "unanswered", "evaluated", "simulated", "pruned",
        "invalid", "problems", "best", "top", "front", "smallest", "asked", "provenance", "peak",
    }  # fmt: skip
    assert values["layouts"] == values["out_of_memory"] + values["evaluated"]
    assert values["evaluated"] == values["simulated"] + values["pruned"]
    assert values["out_of_memory"] > 0
    assert values["best"] == values["top"][0]
    assert len(values["top"]) == 5
    assert set(values["best"]) == {
        "parallelism", "step_time_s", "grade", "interval_s", "tokens_per_s", "tokens_per_s_per_gpu",
        "tflops_per_device", "mfu", "memory_bytes", "warnings", "warning_groups",
    }  # fmt: skip
    assert values["best"]["parallelism"]["world_size"] == 8
    low, high = values["best"]["interval_s"]
    assert low <= values["best"]["step_time_s"] <= high
    times = [one["step_time_s"] for one in values["front"]]
    memory = [one["memory_bytes"] for one in values["front"]]
    assert times == sorted(times)
    assert memory == sorted(memory, reverse=True)
    assert all(one["memory_bytes"] <= 72_000_000 for one in values["top"] + values["front"])
    assert values["invalid"]["micro_batches"]["count"] > 0
    assert values["asked"]["gpus_per_node"] == 4
    assert values["asked"]["sequence_length"] == 8
    assert document(bundle, model_file, "--sequence-length", "16")["asked"]["sequence_length"] == 16


def test_what_search_finds_predict_says_too(bundle: Path, model_file: Path) -> None:
    from kernelcast.cli.predict import predict

    for timeline in ("simulate", "closed-form"):
        best = document(bundle, model_file, "--timeline", timeline)["best"]
        layout = best["parallelism"]
        flags = ["--sequence-parallel"] if layout["sequence_parallel"] else []
        for name in (
            "pp",
            "tp",
            "dp",
            "micro_batch",
            "micro_batches",
            "schedule",
            "virtual_stages",
            "zero",
            "recompute",
        ):
            flags += [f"--{name.replace('_', '-')}", str(layout[name])]
        asked = [
            "--bundle",
            str(bundle),
            "--model",
            str(model_file),
            "--timeline",
            timeline,
            "--json",
            *flags,
        ]
        predicted = json.loads(CliRunner().invoke(predict, asked).stdout)
        assert predicted["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)
        assert predicted["memory"]["largest_bytes"] == best["memory_bytes"]


def test_limits_and_ranking(bundle: Path, model_file: Path) -> None:
    values = document(
        bundle, model_file, "--pp", "2-4", "--tp", "1", "--micro-batch", "1,2", "--schedule", "1f1b,gpipe",
        "--recompute", "full", "--zero", "0,1", "--sequence-parallel", "false", "--top", "200",
    )  # fmt: skip
    layouts = [one["parallelism"] for one in values["top"]]
    assert {one["pp"] for one in layouts} == {2, 4}
    assert {one["tp"] for one in layouts} == {1}
    assert {one["schedule"] for one in layouts} == {"1f1b", "gpipe"}
    assert {one["micro_batch"] for one in layouts} == {1, 2}
    assert {one["zero"] for one in layouts} == {0, 1}
    frugal = document(
        bundle,
        model_file,
        "--gpus",
        "1,8",
        "--rank-by",
        "tokens-per-gpu",
        "--top",
        "200",
        "--zero",
        "1",
        "--recompute",
        "none",
    )
    rates = [one["tokens_per_s_per_gpu"] for one in frugal["top"]]
    assert rates == sorted(rates, reverse=True)
    assert {one["parallelism"]["world_size"] for one in frugal["top"]} == {1, 8}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--gpus", "0"), "gpus is '0', expected a whole number from 1 to 2147483647"),
        (("--gpus", "8,x"), "gpus is 'x', expected a whole number from 1 to 2147483647"),
        (("--global-batch", "0"), "--global-batch is '0', expected a whole number from 1 to 2147483647"),
        (("--pp", "a-b"), "pp is 'a-b', expected numbers and ranges such as 1,2,4-8 or 16-"),
        (("--zero", "5"), "zero is '5', expected a whole number from 0 to 3"),
        (
            ("--schedule", "pipe"),
            "schedules is 'pipe', expected gpipe, 1f1b, interleaved, zero_bubble, "
            "zb_v, dualpipe or dualpipe_v",
        ),
        (
            ("--reserved-memory", "2"),
            "--reserved-memory is '2' without a unit, expected one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in 2GB",
        ),
        (("--gpu-memory", "much"), "--gpu-memory is 'much', expected a size such as 80GB or 40GiB"),
        (("--top", "0"), "--top is '0', expected a whole number from 1 to 10000"),
        (("--gpus-per-node", "0"), "--gpus-per-node is '0', expected a whole number from 1 to 1000000"),
        (("--dask", "here"), "dask is 'here', expected a scheduler's address such as tcp://127.0.0.1:8786"),
        (
            ("--dask", "x://a:1"),
            "dask is 'x://a:1', expected a scheduler's address such as tcp://127.0.0.1:8786",
        ),
    ],
)
def test_nonsense_is_one_line(
    bundle: Path, model_file: Path, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("search", *arguments(bundle, model_file, *more)) == 2
    assert capsys.readouterr().err == f"kernelcast: error: {message}\n"


def test_nothing_fits(bundle: Path, model_file: Path) -> None:
    result = run(bundle, model_file, "--gpu-memory", "1kB")
    assert isinstance(result.exception, DataError)
    assert str(result.exception).startswith("none of ")
    assert re.search(
        r"fits into 1\.0 KiB with a probability of 0\.95: the smallest needs [\d.]+ MiB ",
        str(result.exception),
    )
    result = run(bundle, model_file, "--gpu-memory", "1kB", "--json")
    assert isinstance(result.exception, DataError)
    values = json.loads(result.stdout)
    assert values["best"] is None
    assert values["top"] == []
    assert values["smallest"]["memory_bytes"] > 1000


def test_operators_that_the_bundle_lacks(make_bundle: Make, model_file: Path) -> None:
    lacking = make_bundle(without=("all_reduce", "reduce_scatter"))
    result = run(lacking, model_file, "--gpus", "4")
    assert result.exit_code == 0
    assert "could not be predicted: " in result.output
    assert "has no regressor for reduce_scatter" in " ".join(result.output.split())
    none = make_bundle(without=("gelu",), name="none.kcast")
    result = run(none, model_file)
    assert isinstance(result.exception, DataError)
    assert "no regressor for gelu (forward)" in str(result.exception)


def test_utilisation_is_listed(make_bundle: Make, model_file: Path) -> None:
    compute = [ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")]
    bundle = make_bundle(compute=compute, dtype="bfloat16")
    result = run(bundle, model_file)
    assert re.match(r"step .*, MFU [\d.]+ %\n", result.output)
    values = json.loads(run(bundle, model_file, "--json").output)
    best = values["best"]
    assert values["peak"]["flops_per_s"] == 312e12
    assert best["mfu"] == pytest.approx(best["tflops_per_device"] / 312)
    unknown = json.loads(run(make_bundle(), model_file, "--json").output)
    assert (unknown["peak"], unknown["best"]["mfu"]) == (None, None)


def test_out_of_range_is_flagged(make_bundle: Make, model_file: Path) -> None:
    result = run(make_bundle(largest=10), model_file)
    assert "warning: extrapolated: gemm up to " in result.output
    assert "warnings in all (--warnings lists them)" in result.output
    each = run(make_bundle(largest=10), model_file, "--warnings").output
    assert len(re.findall(r"^  gemm \(.*outside the training range", each, re.MULTILINE)) > 2


def test_interrupted(bundle: Path, tmp_path: Path) -> None:
    # A space that takes minutes: all numbers are products of many small primes.
    model_file = tmp_path / "divisible.toml"
    sizes = "hidden_size = 5040\nattention_heads = 5040\nlayers = 5040"
    model_file.write_text(f"{sizes}\nsequence_length = 5040\nvocabulary_size = 100\n")
    more = ["--gpus", "5040", "--global-batch", "720720", "--virtual-stages", "1-", "--tp", "1-"]
    program = (
        "import os, signal, sys\n"
        "from kernelcast.cli.main import main\n"
        "from kernelcast.runtime.search import search\n"
        "sweep = search.sweep\n"
        "def begun(*arguments, **more):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 1.0)\n"
        "    return sweep(*arguments, **more)\n"
        "search.sweep = begun\n"
        "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n"
        "main(sys.argv[1:])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "search", *arguments(bundle, model_file, *more)],
        capture_output=True, text=True, check=False, timeout=3000,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "kernelcast: interrupted; no file was left half-written"
    assert "Traceback" not in result.stderr
