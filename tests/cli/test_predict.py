"""`kernelcast predict`: what it prints, as text and as JSON, and how it fails."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.cli.predict import predict
from kernelcast.runtime import DataError, KernelcastError, UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.request.fields import Schedule
from tests.cli.printed import ended, next_commands

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Path]
Run = Callable[..., Result]


def test_readable(make_bundle: Make, model_file: Path, run: Run) -> None:
    result = run(make_bundle(), model_file, "--pp", "2", "--gpus-per-node", "2", "--layer-split", "paper")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    # The first stage is the busiest: its three micro-batches of 340 + 680, and its 1F1B waits 90 for the
    # second one's first (5 to get there, 140 + 280, 5 back, less one forward pass); 5 for the optimizer.
    assert lines[0] == "step 3.155 ms, 3,803 tokens/s"
    assert "model     tiny: 4 layers, hidden 8, sequence 4, vocabulary 128 (padded)" in lines
    assert "layers    3, 1" in lines
    assert "  Stage_Bwd_Max  680.0 µs" in lines
    assert "      1       1       1,912  140.0 µs  285.0 µs        0 µs  5.000 µs" in lines
    assert not [line for line in lines if line != line.rstrip() or line.startswith("warning")]
    draws, explains = next_commands(result.output)
    assert draws.startswith("kernelcast predict --bundle ")
    assert draws.endswith(" --layer-split paper --html step.html")
    assert explains == draws.replace("--html step.html", "--explain gemm")
    brief = run(make_bundle(), model_file, "--quiet").output
    assert "Components" not in brief
    assert "next:" not in brief


def test_utilisation(make_bundle: Make, model_file: Path, run: Run) -> None:
    compute = [ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3")]
    bundle = make_bundle(compute=compute, dtype="bfloat16")
    [line] = [one for one in run(bundle, model_file).output.splitlines() if one.startswith("compute ")]
    assert re.fullmatch(
        r"compute   [\d.]+ MFLOP/s per device, MFU 0\.0 % of 989 TFLOP/s \(NVIDIA H100 SXM5 80 GB, bfloat16\)",
        line,
    )
    assert ", HFU 0.0 % of 989" in run(bundle, model_file, "--recompute", "full").output
    assert "FLOP/s per device; the peak of the device is not known" in run(make_bundle(), model_file).output


def test_memory_without_a_unit_is_refused(make_bundle: Make, model_file: Path, run: Run) -> None:
    error = run(make_bundle(), model_file, "--gpu-memory", "80").exception
    assert isinstance(error, UsageError)
    assert str(error).startswith("--gpu-memory is '80' without a unit, expected one of B, kB, MB, GB, ")


def test_memory_of_no_device_is_refused(make_bundle: Make, model_file: Path, run: Run) -> None:
    error = run(make_bundle(), model_file, "--gpu-memory", "8000GB").exception
    assert isinstance(error, UsageError)
    assert str(error) == "gpu_memory_bytes is 8000000000000, expected a size from 1 byte to 4 TiB"


def test_json(make_bundle: Make, model_file: Path, run: Run) -> None:
    options = "--pp 2 --gpus-per-node 2 --recompute full --layer-split paper --json"
    result = run(make_bundle(), model_file, *options.split())
    values = json.loads(result.output)
    assert values["format"] == "kernelcast.estimate/2"
    # Encoder backward 330, first stage 340 and 20 + 990, second 140 and 385: 3 · 1,350, 200 waited, 5.
    assert values["step_time_s"] == pytest.approx(4255e-6)
    assert values["parallelism"]["recompute"] == "full"


def test_every_layout_option_arrives(make_bundle: Make, model_file: Path) -> None:
    arguments = (
        "--pp 2 --tp 2 --dp 2 --micro-batch 3 --global-batch 24 --gpus-per-node 4 --schedule interleaved "
        "--virtual-stages 2 --layer-counts 1,2,1,0 --zero 2 --sequence-parallel --recompute selective "
        "--bucket-entries 1000 --timeline closed-form --gpu-memory 1MB --reserved-memory 1kB --sequence-length 8 --json"
    )
    bundle = str(make_bundle())
    result = CliRunner().invoke(predict, ["--bundle", bundle, "--model", str(model_file), *arguments.split()])
    values = json.loads(result.output)
    assert {
        "pp": 2,
        "tp": 2,
        "dp": 2,
        "micro_batch": 3,
        "micro_batches": 4,
        "global_batch": 24,
        "schedule": "interleaved",
        "virtual_stages": 2,
        "layer_counts": [1, 2, 1, 0],
        "zero": 2,
        "sequence_parallel": True,
        "recompute": "selective",
        "bucket_entries": 1000,
    }.items() <= values["parallelism"].items()
    assert values["timeline"] == "closed-form"
    assert values["model"]["sequence_length"] == 8
    assert values["cluster"] == {"gpus_per_node": 4, "source": "asked"}
    assert (values["memory"]["gpu_memory_bytes"], values["memory"]["source"]) == (10**6, "asked")
    assert values["memory"]["reserved_bytes"] == 1000
    assert values["memory"]["margin_bytes"] == 10**6 - 1000 - values["memory"]["largest_bytes"]
    low_s, high_s = values["interval_s"]
    assert 0 < low_s <= values["step_time_s"] <= high_s


def test_a_list_can_stand_in_a_file(make_bundle: Make, model_file: Path, tmp_path: Path, run: Run) -> None:
    numbers = tmp_path / "layers.json"
    numbers.write_text("[1,\n 3]\n")
    found = run(make_bundle(), model_file, "--pp", "2", "--layer-counts", str(numbers), "--json")
    assert json.loads(found.output)["parallelism"]["layer_counts"] == [1, 3]


def test_one_of_the_batches_is_needed(make_bundle: Make, model_file: Path) -> None:
    files = ["--bundle", str(make_bundle()), "--model", str(model_file)]
    result = CliRunner().invoke(predict, [*files, "--micro-batch", "1"])
    assert str(result.exception) == "neither micro_batches nor global_batch is given, expected one of them"
    result = CliRunner().invoke(predict, [*files, "--micro-batch", "2", "--global-batch", "5"])
    assert str(result.exception).startswith(
        "global_batch is 5, expected a multiple of micro_batch · dp (2 · 1"
    )


def test_a_built_in_model(make_bundle: Make) -> None:
    arguments = ["--model", "llama-2-7b", "--sequence-length", "2048", "--micro-batch", "1"]
    result = CliRunner().invoke(predict, ["--bundle", str(make_bundle()), *arguments, "--micro-batches", "1"])
    assert "model     llama-2-7b: 32 layers, hidden 4096, sequence 2048, vocabulary 32000" in result.output


def test_what_would_make_it_fit() -> None:
    layout = ["--tp", "4", "--dp", "16", "--micro-batch", "4", "--micro-batches", "8"]
    arguments = ["--hardware", "h100-sxm", "--model", "llama-3.1-8b", *layout]
    text = CliRunner().invoke(predict, arguments, env={"COLUMNS": "120"}).output
    assert "What would make it fit\n  change " in text
    assert "\n  recompute full " in text
    one = CliRunner().invoke(predict, [*arguments, "--tp", "1", "--dp", "1", "--gpu-memory", "1GB"]).output
    assert "  no single change, not even with full recomputation\n" in one
    assert "What would" not in CliRunner().invoke(predict, [*arguments, "--recompute", "full"]).output


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ("q_proj,k_proj,v_proj,o_proj", ["attention"]),
        ("up_proj,gate_proj,down_proj,attention", ["attention", "mlp"]),
        ("q_proj,v_proj", ["q_proj", "v_proj"]),
        ("linear_qkv,attention_dense", ["attention"]),
        ("all-linear", ["attention", "mlp"]),
        ("experts", None),
    ],
)
def test_linears_of_adapters_by_names_of_peft(
    modules: str, found: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "predict --hardware h100-sxm --model llama-3-8b --micro-batch 1 --micro-batches 1 --lora-rank 8 --json"
    assert ended(*command.split(), "--lora-linears", modules) == (2 if found is None else 0)
    shown = capsys.readouterr()
    if found is None:
        assert "expected target modules of PEFT: attention (q_proj,k_proj,v_proj,o_proj), mlp (" in shown.err
    else:
        assert json.loads(shown.out)["parallelism"]["lora_linears"] == found


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--tensor-overlap products", "--tensor-overlap has no effect with --tp 1"),
        ("--overlap-parameters true --zero 0", "--overlap-parameters has no effect with --zero 0"),
        ("--recompute-modules mlp", "--recompute-modules has no effect with --recompute none"),
        ("--recompute selective --recompute-layers 2", "--recompute-layers has no effect with --recompute selective"),
        ("--lora-dropout 0.1", "--lora-dropout has no effect with --lora-rank 0"),
        ("--tensor-overlap products --tp 2", None),
        ("--sequence-parallel false", None),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(
    options: str, error: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "predict --hardware h100-sxm --model llama-3-8b --micro-batch 1 --micro-batches 1 -q"
    assert ended(*command.split(), *options.split()) == (0 if error is None else 2)
    assert capsys.readouterr().err == ("" if error is None else f"kernelcast: error: {error}\n")


@pytest.mark.parametrize(
    "command",
    [
        "predict --gpus 8 --global-batch 8",
        "search --gpus 8 --global-batch 8",
        "plan --dp 1 --micro-batch 1 --micro-batches 1 --tokens 1B",
        "compare --mfu 43 --micro-batch 1 --micro-batches 1",
    ],
)
def test_every_command_refuses_them(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = "--hardware h100-sxm --model llama-3-8b --lora-linears q_proj"
    assert ended(*command.split(), *model.split()) == 2
    assert "--lora-linears has no effect with --lora-rank 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "heading", "verdict"),
    [
        ("80GB", "fits into 74.5 GiB (given)", "yes"),
        ("5kB", "does NOT fit into 4.9 KiB (given)", "NO"),
        (None, "a device's size is not known (--gpu-memory)", None),
    ],
)
def test_memory_says_whether_it_fits(
    make_bundle: Make, model_file: Path, run: Run, size: str | None, heading: str, verdict: str | None
) -> None:
    arguments = [] if size is None else ["--gpu-memory", size]
    lines = run(make_bundle(), model_file, "--pp", "2", *arguments).output.splitlines()
    at = lines.index(f"Memory per device, {heading}")
    columns = lines[at + 1].split()
    assert (columns[-1] == "fits") is (verdict is not None)
    assert columns[:6] == ["stage", "weights", "gradients", "optimizer", "activations", "logits"]
    if verdict is not None:
        assert [line.split()[-1] for line in lines[at + 3 : at + 5]] == [verdict] * 2


def test_equal_stages_share_a_row(make_bundle: Make, model_file: Path, run: Run) -> None:
    stages = ["--pp", "4", "--layer-counts", "1,1,1,1"]
    lines = run(make_bundle(), model_file, *stages).output.splitlines()
    at = lines.index("Stages, per micro-batch (forward, backward) and per update")
    assert [line.split()[0] for line in lines[at + 3 : at + 6]] == ["0", "1-2", "3"]


numbers = st.integers(-2, 12).map(str) | st.sampled_from(["x", "1.5", "", "10" * 40, "1000000"])
options = st.dictionaries(
    st.sampled_from(
        [
            *("--pp", "--tp", "--dp", "--micro-batch", "--micro-batches", "--virtual-stages", "--zero"),
            *("--gpus-per-node", "--sequence-length", "--layer-counts", "--gpu-memory", "--bucket-entries"),
        ]
    ),
    numbers,
    max_size=3,
)
choices = st.fixed_dictionaries(
    {},
    optional={
        "--schedule": st.sampled_from(get_args(Schedule)),
        "--recompute": st.sampled_from(["none", "selective", "full"]),
        "--timeline": st.sampled_from(["simulate", "closed-form"]),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(options=options, choices=choices, sequence_parallel=st.booleans())
def test_any_command_line_gives_an_estimate_or_one_line(
    tmp_path: Path,
    model_file: Path,
    make_bundle: Make,
    options: dict[str, str],
    choices: dict[str, str],
    sequence_parallel: bool,
) -> None:
    bundle = tmp_path / "test.kcast"
    if not bundle.exists():
        make_bundle()
    given = {
        "--bundle": str(bundle),
        "--model": str(model_file),
        "--micro-batch": "1",
        "--micro-batches": "4",
    }
    words = [word for pair in (given | options | choices).items() for word in pair]
    flags = ["--json", *(["--sequence-parallel"] if sequence_parallel else [])]
    result = CliRunner().invoke(predict, [*words, *flags])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert isinstance(result.exception, KernelcastError), result.exc_info
        assert len(str(result.exception).splitlines()) == 1
    elif result.exit_code == 0:
        values = json.loads(result.output, parse_constant=pytest.fail)
        low_s, high_s = values["interval_s"]
        assert 0 < low_s <= values["step_time_s"] <= high_s
    else:
        assert result.exit_code == 2
        assert "Error: " in result.output


def test_warnings_are_shown_by_cause(make_bundle: Make, model_file: Path, run: Run) -> None:
    bundle = make_bundle(largest=1)
    text = run(bundle, model_file).output
    warnings = [" ".join(one.split()) for one in re.findall(r"^warning: .*\n(?:  .*\n)*", text, re.MULTILINE)]
    assert re.fullmatch(
        r"warning: extrapolated: gemm up to 128× beyond measured n; .*; \d+ more \([\d.]+ % of the step\)",
        warnings[0],
    )
    assert len(warnings) == 2
    assert re.fullmatch(r"warning: \d\d warnings in all \(--warnings lists them\)", warnings[1])
    each = run(bundle, model_file, "--warnings").output
    count = int(warnings[1].split()[1])
    assert len(re.findall(r"^  \w+ \(.*outside the training range", each, re.MULTILINE)) == count


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--micro-batch", "0"], UsageError, "--micro-batch is '0', expected a whole number from 1"),
        (["--pp", "5"], UsageError, "pp is 5, expected from 1 to 4 for 4 layers"),
        (["--tp", "3"], UsageError, "tp is 3, expected a divisor of attention_heads (2) of model tiny"),
        (["--gpus-per-node", "0"], UsageError, "--gpus-per-node is '0', expected a whole number from 1"),
        (["--bucket-entries", "-1"], UsageError, "--bucket-entries is '-1', expected a whole number from 1"),
        (["--zero", "4"], UsageError, "--zero is '4', expected a whole number from 0 to 3"),
        (["--virtual-stages", "2"], UsageError, "virtual_stages is 2, expected 1 with schedule 1f1b"),
        (
            ["--layer-counts", "2,2"],
            UsageError,
            "layer_counts is (2, 2), expected one number per stage, 1 in all",
        ),
        (
            ["--layer-counts", "3"],
            UsageError,
            "layer_counts add up to 3, expected 4, the layers of model tiny",
        ),
        (
            ["--layer-counts", "2;2"],
            UsageError,
            "--layer-counts is '2;2', expected whole numbers, one per stage, such",
        ),
        (
            ["--layer-counts", "2,no"],
            UsageError,
            "--layer-counts is '2,no', expected whole numbers, one per stage, such",
        ),
        (
            ["--layer-counts", "/dev/zero"],
            DataError,
            "/dev/zero: cannot be read (is a device, expected a regular file)",
        ),
        (
            ["--expert-capacity", "1"],
            UsageError,
            "expert_capacity is 1.0, expected 0.0: model tiny has no experts",
        ),
        (["--pp", "two"], UsageError, "--pp is 'two', expected a whole number from 1 to 1000000"),
        (["--recompute", "some"], UsageError, "--recompute is 'some', expected none, selective or full"),
        (["--tp", "1", "--mp", "1"], UsageError, "tp and mp are both given, expected only tp"),
        (
            ["--layer-counts", "4", "--encoder-counts", "4"],
            UsageError,
            "layer_counts and encoder_counts are both given, expected only layer_counts",
        ),
        (["--layer-counts", "9" * 5000], UsageError, "--layer-counts is '9999"),
        (
            ["--global-batch", "3"],
            UsageError,
            "micro_batches and global_batch are both given, expected one",
        ),
        (["--sequence-length", "0"], UsageError, "--sequence-length is '0', expected a whole number from 1"),
        (
            ["--gpu-memory", "much"],
            UsageError,
            "--gpu-memory is 'much', expected a size such as 80GB or 40GiB",
        ),
        (["--explain", "rop"], UsageError, "operator rop is unknown; of this step nearest is rope"),
        (["--explain", "gelu", "--db", "none.db"], DataError, "none.db: no such database; expected a file"),
        (["--model", "gpt-2o"], UsageError, "model 'gpt-2o' is unknown, nearest is gpt-20b"),
        (["--model", "none.toml"], DataError, "model file none.toml: no such file"),
        (["--bundle", "none.kcast"], DataError, "bundle none.kcast: no such file"),
    ],
)
def test_errors_name_the_thing(
    make_bundle: Make, model_file: Path, run: Run, arguments: list[str], error: type[Exception], message: str
) -> None:
    # The group around the command prints these as one line; here they are seen as raised.
    result = run(make_bundle(), model_file, *arguments)
    assert isinstance(result.exception, error)
    assert str(result.exception).startswith(message)
    assert result.output == ""


@pytest.mark.parametrize(("pp", "bundle", "status"), [("9", "test.kcast", 2), ("1", "none.kcast", 1)])
def test_errors_are_one_line_and_an_exit_code(
    make_bundle: Make, model_file: Path, capsys: pytest.CaptureFixture[str], pp: str, bundle: str, status: int
) -> None:
    folder = make_bundle().parent
    files = ["--bundle", str(folder / bundle), "--model", str(model_file)]
    assert ended("predict", *files, "--micro-batch", "1", "--micro-batches", "1", "--pp", pp) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kernelcast: error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--colour"], ["extra"]])
def test_wrong_use(make_bundle: Make, model_file: Path, run: Run, arguments: list[str]) -> None:
    result = run(make_bundle(), model_file, *arguments)
    assert result.exit_code == 2
    assert result.output.startswith("Usage: ")
