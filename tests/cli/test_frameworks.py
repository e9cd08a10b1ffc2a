"""`--as` of predict and search, and `predict --layout`: what goes to which stream, and how they fail."""

import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.predict import predict
from kernelcast.cli.search import search_
from kernelcast.runtime import DataError, UsageError

Make = Callable[..., Path]
Run = Callable[..., Result]
PP = ("--pp", "2", "--zero", "0", "--gpus-per-node", "2")


@pytest.fixture
def asked(make_bundle: Make, model_file: Path) -> Callable[..., Result]:
    """`predict` of the small model without a layout."""
    files = ["--bundle", str(make_bundle()), "--model", str(model_file)]
    return lambda *arguments, **more: CliRunner().invoke(predict, [*files, *arguments], **more)


def parallelism(result: Result) -> dict[str, Any]:
    assert result.exception is None, result.exception
    values: dict[str, Any] = json.loads(result.stdout)["parallelism"]
    return values


@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan", "deepspeed"])
def test_what_is_printed_is_read_back(
    framework: str,
    make_bundle: Make,
    model_file: Path,
    run: Run,
    asked: Callable[..., Result],
    tmp_path: Path,
) -> None:
    printed = run(make_bundle(), model_file, *PP, "--recompute", "full", "--as", framework)
    file = tmp_path / "layout"
    file.write_text(printed.stdout)
    as_run = ("--recompute", "full", "--framework", framework)
    expected = parallelism(run(make_bundle(), model_file, *PP, *as_run, "--json"))
    # A file without zero, tp and selective recomputation does not say what has no effect then.
    for name in ("gradient_collective", "kept_by", "recompute_modules", "layer_split", "context_exchange"):
        expected[name] = parallelism(asked("--layout", str(file), "--sequence-length", "4", "--json"))[name]
    again = asked("--layout", str(file), "--sequence-length", "4", "--json")
    assert parallelism(again) == expected | {"layer_counts": None}
    assert again.stderr.count("\n") <= 1
    assert (
        parallelism(asked("--layout", "-", "--sequence-length", "4", "--json", input=printed.stdout))
        == expected
    )


def test_files_that_a_script_names_are_read_beside_it_but_not_beside_standard_input(
    asked: Callable[..., Result], tmp_path: Path
) -> None:
    script = "deepspeed --num_gpus 2 train.py --per_device_train_batch_size 2 --deepspeed_config ds.json"
    (tmp_path / "layouts").mkdir()
    (tmp_path / "layouts" / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (file := tmp_path / "layouts" / "train.sh").write_text(script)
    more = ("--sequence-length", "4", "--json")
    assert parallelism(asked("--layout", str(file), *more))["zero"] == 2
    with chdir(file.parent):
        assert parallelism(asked("--layout", "-", *more, input=script))["zero"] == 0


def test_only_the_arguments_are_on_standard_output(make_bundle: Make, model_file: Path, run: Run) -> None:
    result = run(make_bundle(), model_file, *PP, "--schedule", "zero_bubble", "--as", "deepspeed")
    assert json.loads(result.stdout)["train_batch_size"] == 3
    fallback, lost = result.stderr.splitlines()
    assert fallback == "warning: DeepSpeed runs schedule 1f1b instead of zero_bubble"
    assert lost.startswith("warning: not in the arguments of DeepSpeed: ")
    assert lost.endswith("; sequence_length 4; the model")


def test_the_best_of_a_search(make_bundle: Make, model_file: Path, asked: Callable[..., Result]) -> None:
    arguments = [
        "--bundle",
        str(make_bundle()),
        "--model",
        str(model_file),
        "--gpus",
        "4",
        "--global-batch",
        "8",
    ]
    of = ["--framework", "megatron-lm"]
    best = json.loads(CliRunner().invoke(search_, [*arguments, *of, "--json"]).stdout)["top"][0][
        "parallelism"
    ]
    printed = CliRunner().invoke(search_, [*arguments, "--as", "megatron-lm"])
    assert printed.stdout.startswith("torchrun --nnodes 1 --nproc-per-node 4 pretrain_gpt.py \\\n")
    found = parallelism(asked("--layout", "-", "--json", input=printed.stdout))
    assert {name: found[name] for name in ("pp", "tp", "dp", "micro_batch", "micro_batches")} == {
        name: best[name] for name in ("pp", "tp", "dp", "micro_batch", "micro_batches")
    }


def test_options_win_and_the_rest_is_named(asked: Callable[..., Result]) -> None:
    flags = (
        "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 --lr 1e-3 --hidden-size 16"
    )
    result = asked("--layout", "-", "--gpus", "4", "--zero", "3", "--json", input=flags)
    assert parallelism(result).items() >= {"tp": 2, "dp": 2, "zero": 3, "global_batch": 8}.items()
    assert result.stderr.splitlines() == [
        "warning: standard input: neither --bf16 nor --fp16: Megatron-LM trains in float32, but the prediction "
        "uses the bundle's dtype; --hidden-size says hidden_size 16, model tiny has 8, which is used",
        "standard input: not read (1): --lr (line 1)",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--layout", "-"],
            "standard input: does not state dp, expected the devices of the job: give --gpus or --dp",
        ),
        (
            ["--layout", "-", "--gpus", "3"],
            "standard input: 3 devices, expected a multiple of pp · tp · cp (2)",
        ),
        (
            ["--layout", "-", "--gpus", "8", "--dp", "2"],
            "standard input: 8 devices, expected pp · tp · dp · cp (4)",
        ),
        (["--layout", "missing"], "layout file missing: no such file"),
        (["--gpus", "8"], "global_batch is not given, which a search for a layout needs"),
        (["--as", "deepspeed", "--json"], "--as and --json are both given, expected one of them"),
        ([], "micro_batch is not given; to search for a layout, give gpus and global_batch"),
    ],
)
def test_refusals(asked: Callable[..., Result], arguments: list[str], said: str) -> None:
    error = asked(*arguments, input="--tensor-model-parallel-size 2 --micro-batch-size 1").exception
    assert isinstance(error, UsageError | DataError)
    assert str(error) == said
