"""`kernelcast predict`: what it prints, as text and as JSON, and how it fails."""

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.main import main
from kernelcast.cli.predict import predict
from kernelcast.cli.tables import seconds, text_table
from kernelcast.runtime import DataError, UsageError

Make = Callable[..., Path]
MODEL = """
[model]
name = "tiny"
hidden_size = 8
sequence_length = 4
attention_heads = 2
encoders = 4
vocabulary_size = 100
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A model of 4 encoders."""
    path = tmp_path / "tiny.toml"
    path.write_text(MODEL)
    return path


def run(bundle: Path, model_file: Path, *arguments: str) -> Result:
    always = (
        "--bundle",
        str(bundle),
        "--model",
        str(model_file),
        "--micro-batch",
        "1",
        "--micro-batches",
        "3",
    )
    return CliRunner().invoke(predict, [*always, *arguments])


def test_readable(make_bundle: Make, model_file: Path) -> None:
    result = run(make_bundle(), model_file, "--pp", "2", "--gpus-per-node", "2")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    # The first stage is the busiest: its three micro-batches of 340 + 680, and its 1F1B waits 90 for the
    # second one's first (5 to get there, 140 + 280, 5 back, less one forward pass); 5 for the optimizer.
    assert lines[0] == "step 0.003155 s, 3,803 tokens/s"
    assert "model     tiny: 4 encoders, hidden 8, sequence 4, vocabulary 128 (padded)" in lines
    assert "encoders  3, 1" in lines
    assert "  Stage_Bwd_Max  680.0 µs" in lines
    assert "      1         1       1,912  140.0 µs  285.0 µs      0.0 µs  5.0 µs" in lines
    assert not [line for line in lines if line != line.rstrip() or line.startswith("warning")]


def test_json(make_bundle: Make, model_file: Path) -> None:
    result = run(
        make_bundle(), model_file, "--pp", "2", "--gpus-per-node", "2", "--recompute", "full", "--json"
    )
    values = json.loads(result.output)
    assert values["format"] == "kernelcast.estimate/1"
    # Encoder backward 330, first stage 340 and 20 + 990, second 140 and 385: 3 · 1,350, 200 waited, 5.
    assert values["step_time_s"] == pytest.approx(4255e-6)
    assert values["parallelism"]["recompute"] == "full"


def test_warnings_are_shown_and_counted(make_bundle: Make, model_file: Path) -> None:
    lines = run(make_bundle(largest=1), model_file).output.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert warnings[0] == "warning: embedding (forward): tokens = 4 is outside the training range, 1 to 1"
    assert len(warnings) == 9
    assert warnings[-1].endswith("more operator(s) asked outside the training range (--json has all)")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--micro-batch", "0"], UsageError, "micro_batch is 0, expected a whole number from 1"),
        (["--pp", "5"], UsageError, "pp is 5, expected from 1 to 4 for 4 encoders"),
        (["--mp", "3"], UsageError, "mp is 3, expected a divisor of attention_heads (2) of model tiny"),
        (["--gpus-per-node", "0"], UsageError, "gpus_per_node is 0, expected a whole number from 1"),
        (["--bucket-entries", "-1"], UsageError, "bucket_entries is -1, expected a whole number from 1"),
        (["--model", "none.toml"], DataError, "model file none.toml: no such file"),
        (["--bundle", "none.kcast"], DataError, "bundle none.kcast: no such file"),
    ],
)
def test_errors_name_the_thing(
    make_bundle: Make, model_file: Path, arguments: list[str], error: type[Exception], message: str
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
    with pytest.raises(SystemExit) as stopped:
        main(["predict", *files, "--micro-batch", "1", "--micro-batches", "1", "--pp", pp])
    assert stopped.value.code == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kernelcast: error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--pp", "two"], ["--recompute", "some"], ["--colour"], ["extra"]])
def test_wrong_use(make_bundle: Make, model_file: Path, arguments: list[str]) -> None:
    result = run(make_bundle(), model_file, *arguments)
    assert result.exit_code == 2
    assert result.output.startswith("Usage: ")


def test_help_says_every_option() -> None:
    help_text = CliRunner().invoke(predict, ["--help"]).output
    for option in predict.params:
        assert isinstance(option, click.Option)
        assert option.help
        assert option.opts[0] in help_text


def test_tables() -> None:
    assert text_table(("name", "time"), [("a", "1 s"), ("long name", "12 ms")]) == (
        "name        time\n---------  -----\na            1 s\nlong name  12 ms"
    )
    assert text_table(("a", "b"), []) == "a  b\n-  -"
    assert [seconds(value) for value in (2, 0.0123, 4.5e-6, 0)] == ["2.000 s", "12.30 ms", "4.5 µs", "0.0 µs"]
