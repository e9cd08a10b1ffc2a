"""`kernelcast validate run`: the command trains for real and prints what it found; wrong use is one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

CONFIG = """
rounds = 1
warm_up_steps = 1
[models.tiny]
hidden_size = 32
sequence_length = 16
attention_heads = 4
layers = 3
vocabulary_size = 200
[defaults]
model = "tiny"
pp = 1
tp = 1
dp = 1
micro_batch = 1
micro_batches = 2
[[runs]]
[[runs]]
tp = 2
"""


@pytest.fixture
def arguments(tmp_path: Path, make_bundle: Callable[..., Path]) -> list[str]:
    path = tmp_path / "mine.toml"
    path.write_text(CONFIG)
    return [
        "validate", "run", "--bundle", str(make_bundle()), "--db", str(tmp_path / "steps.db"),
        "--config", str(path), "--device", "cpu", "--repetitions", "1", "--steps", "3",
    ]  # fmt: skip


@pytest.mark.slow
def test_components_operators_and_summary(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*arguments, "--by-operator", "--max-processes", "2") == 0
    out = capsys.readouterr().out
    for word in ("tiny 1-1-1, 2 × 1", "tiny 1-2-1, 2 × 1", "Encoder_Bwd", "MP_Allreduce", "Overall"):
        assert word in out
    assert "gemm/qkv" in out
    assert "idle passes" in out
    # Kernels of no operator that take next to nothing are one line.
    cells = [line.split() for line in out.splitlines() if line.startswith("  ")]
    shares = [
        float(one[-2][:-1]) for one in cells if len(one) > 7 and one[-6] == "-" and one[-2].endswith("%")
    ]
    assert shares
    assert min(shares) >= 0.05
    assert "and 0 kernels" not in out
    assert out.count("  traced step ") == 1  # of the configuration with one process
    assert "mean of absolute errors" in out
    assert "repetition 1: mean" in out
    assert "fastest steps of rounds cannot be compared (one round), reference products by" in out
    assert "inside the predicted 90 % interval: " in out
    assert "note: the bundle was measured on other hardware; this is " in out
    # The same again comes from the database: the same steps, as JSON.
    assert ended(*arguments, "--json", "--max-processes", "2") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["format"] == "kernelcast.validation-run/2"
    assert [one["tp"] for one in document["runs"]] == [1, 2]
    assert document["same_hardware"] is False
    assert document["noise"]["largest"] is None
    alone, pair = document["runs"]
    assert 0 < alone["traced_gaps_s"] < alone["traced_s"]
    assert pair["traced_s"] is None
    assert printed.err == ""


@pytest.mark.slow
def test_what_differs_between_configurations_is_said(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(arguments[arguments.index("--config") + 1])
    path.write_text(
        CONFIG.partition("[[runs]]")[0] + '[[runs]]\n[[runs]]\nrecompute = "full"\n'
        '[[runs]]\nschedule = "gpipe"\nmicro_batches = 1\n'
    )
    assert ended(*arguments) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny 1-1-1")]
    assert titles == ["tiny 1-1-1, 2 × 1", "tiny 1-1-1, 2 × 1, recompute full", "tiny 1-1-1, 1 × 1, gpipe"]


@pytest.mark.slow
def test_a_calibration_is_said_and_can_be_left_out(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*arguments, "--only", "1-1-1", "--json") == 0
    before = json.loads(capsys.readouterr().out)
    assert before["calibration"] is None
    plain = arguments[arguments.index("--bundle") + 1]
    layout = "pp = 1\nmp = 1\ndp = 1\nmicro_batch = 1\nmicro_batches = 2\n"
    measured = f"measured_s = {1.2 * before['runs'][0]['predicted_s']}\n"
    model = CONFIG[CONFIG.index("[models.tiny]") : CONFIG.index("[defaults]")]
    (tmp_path / "site.toml").write_text(
        f'site = "a site"\nhardware = "h"\nsource = "s"\n{model}\n[[runs]]\nmodel = "tiny"\n{layout}{measured}'
    )
    calibrated = str(tmp_path / "calibrated.kcast")
    assert ended("calibrate", "--bundle", plain, "--runs", str(tmp_path / "site.toml"), "-o", calibrated) == 0
    arguments[arguments.index("--bundle") + 1] = calibrated
    capsys.readouterr()
    assert ended(*arguments, "--only", "1-1-1", "--json") == 0
    corrected = json.loads(capsys.readouterr().out)
    assert corrected["calibration"]["applied"] is True
    assert corrected["runs"][0]["predicted_s"] > before["runs"][0]["predicted_s"]
    assert ended(*arguments, "--only", "1-1-1") == 0
    assert "note: calibration of predictions: " in capsys.readouterr().out
    assert ended(*arguments, "--only", "1-1-1", "--no-calibration", "--json") == 0
    left_out = json.loads(capsys.readouterr().out)
    assert left_out["runs"][0]["predicted_s"] == before["runs"][0]["predicted_s"]
    assert left_out["calibration"]["reason"] == "switched off"


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--max-processes", "1"], 2, "tiny (1-2-1) needs 2 processes, expected at most 1 (--max-processes)"),
        (["--threads", "100000"], 2, "expected at most 0 (its cores, 100000 threads each; --max-processes"),
        (["--only", "4-1-1"], 2, "layout '4-1-1' is not in the configuration, known are 1-1-1, 1-2-1"),
        (["--dtype", "bfloat16"], 2, "was measured in float32, but the configuration is in bfloat16"),
        (["--config", "missing.toml"], 1, "configuration missing.toml: no such file"),
        (["--bundle", "missing.kcast"], 1, "missing.kcast"),
    ],
)
def test_wrong_use_is_one_line_before_anything_is_made(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    code: int,
    message: str,
) -> None:
    limit = [] if "--threads" in more else ["--max-processes", "2"]
    assert ended(*arguments, *limit, *more) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (tmp_path / "steps.db").exists()


def test_a_collective_that_the_bundle_lacks_is_named_with_its_configuration(
    arguments: list[str], make_bundle: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    poor = make_bundle(without=["all_reduce"], name="poor.kcast")
    assert ended(*arguments, "--bundle", str(poor), "--max-processes", "2") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "tiny (1-2-1): bundle " in line
    assert "all_reduce" in line
