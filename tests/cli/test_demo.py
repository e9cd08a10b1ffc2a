"""`kernelcast demo`: refuses at once what it could not finish, and does the whole loop for real."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.store import Database, MeasuredStep, Prediction
from tests.cli.printed import ended, without_next

PLAN = Path(__file__).parent.parent / "data" / "plans" / "tiny.toml"
DEMO = """
plan = "PLAN"
seed = 20
steps = 3
rounds = 1
warm_up_steps = 1
[models.tiny-gpt]
hidden_size = 64
sequence_length = 16
attention_heads = 4
layers = 3
vocabulary_size = 200
[defaults]
model = "tiny-gpt"
tp = 1
dp = 1
micro_batch = 1
micro_batches = 2
[[runs]]
pp = 1
[[runs]]
pp = 2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A demo of a tiny model over a tiny plan that has as many points as a regressor needs."""
    plan, path = tmp_path / "plan.toml", tmp_path / "demo.toml"
    text = PLAN.read_text().replace("shapes_per_operator = 2", "shapes_per_operator = 8")
    text = re.sub(r"hidden_size = .*", "hidden_size = [32, 48, 64, 96]", text)
    text = re.sub(r"layers = .*", "layers = [1, 2, 3, 4, 5]", text)
    text = re.sub(r"most_parameters = .*", "most_parameters = 600000", text)
    plan.write_text(re.sub(r"largest_bytes = .*", "largest_bytes = 524288", text))
    path.write_text(DEMO.replace("PLAN", str(plan)))
    return path


def failed(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str]:
    status = ended("demo", *arguments)
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.out == ""  # nothing was begun
    return status, printed.err.removeprefix("kernelcast: error: ").strip()


@pytest.mark.parametrize(
    ("old", "new", "status", "message"),
    [
        (
            "seed = 20",
            "sed = 20",
            2,
            "{config}: field 'sed' is unknown (did you mean seed?)",
        ),
        ("seed = 20", "seed = =", 1, "{config}: not TOML"),
        ("steps = 3", 'steps = "3"', 2, "{config}: steps is '3', expected a whole number"),
        ("pp = 2", "pp = 9", 2, "{config}: run 2: pp is 9, expected from 1 to 3 for 3 layers"),
        ("plan.toml", "none.toml", 2, "{config}: plan {folder}/none.toml: no such file"),
    ],
)
def test_a_bad_configuration_is_one_line_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
    config: Path,
    tmp_path: Path,
    old: str,
    new: str,
    status: int,
    message: str,
) -> None:
    config.write_text(config.read_text().replace(old, new))
    files = ["--db", str(tmp_path / "b.db"), "-o", str(tmp_path / "b.kcast")]
    code, said = failed(capsys, ["--config", str(config), *files])
    assert said.startswith(message.format(config=config, folder=tmp_path))
    assert code == status
    assert not (tmp_path / "b.db").exists()


def test_missing_files_and_folders(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    files = ["--db", str(tmp_path / "b.db"), "-o", str(tmp_path / "b.kcast")]
    code, said = failed(capsys, ["--config", str(tmp_path / "none.toml"), *files])
    assert (code, said) == (1, f"{tmp_path}/none.toml: no such file, expected a demo configuration (TOML)")
    bundle = tmp_path / "none" / "b.kcast"
    code, said = failed(capsys, ["--config", str(config), "--db", str(tmp_path / "b.db"), "-o", str(bundle)])
    assert (code, said) == (1, f"{bundle}: its folder does not exist")
    assert not (tmp_path / "b.db").exists()


@pytest.mark.slow(minutes=6)
@pytest.mark.usefixtures("wide")
def test_the_whole_loop(config: Path, tmp_path: Path) -> None:
    database, bundle = tmp_path / "bench.db", tmp_path / "here.kcast"
    kernelcast = [sys.executable, "-m", "kernelcast.cli.main"]
    command = [*kernelcast, "demo", "--config", str(config), "--db", str(database), "-o", str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    lines = without_next(done.stdout).splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{n}/5]" for n in range(1, 6)]

    # Predicted and measured, per layout.
    times = r"(\s+[\d.]+ m?s){4}\s+[+-][\d.]+%"
    for label in ("1-1-1", "2-1-1"):
        assert any(re.match(rf"\s+tiny-gpt {label}, 2 × 1{times}", line) for line in lines)
    for part in ("Stage_Fwd_Max", "Stage_Bwd_Max", "Max_Update"):
        assert sum(line.split()[:1] == [part] for line in lines) == 2
    for title in ("operators", "collectives", "regressors", "training"):
        assert re.search(rf"^{title}: (\d+) of \1$", done.stderr, re.MULTILINE)

    with Database.open(database, read_only=True) as opened:
        steps, predictions = opened.records(MeasuredStep), opened.records(Prediction)
        operators = {row.operator for row in opened.read_samples()}
    assert {(step.pp, len(step.repetitions_s)) for step in steps} == {(1, 3), (2, 3)}
    assert {prediction.step_id for prediction in predictions} == {step.id for step in steps}
    assert {"gemm", "adam", "point_to_point", "reduce_scatter"} <= operators
    assert {entry.operator for entry in read_bundle(bundle).manifest.regressors} == operators

    # A user predicts with what is left behind, and gets what the demo showed.
    model = tmp_path / "model.toml"
    model.write_text(config.read_text().partition("[defaults]")[0].partition("[models.tiny-gpt]")[2])
    command = [*kernelcast, "predict", "--bundle", str(bundle), "--model", str(model), "--json"]
    command += ["--pp", "2", "--micro-batch", "1", "--micro-batches", "2"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    (step,) = [step for step in steps if step.pp == 2]
    (stored,) = [p for p in predictions if p.step_id == step.id and p.timeline == "schedule"]
    assert json.loads(answer.stdout)["step_time_s"] == pytest.approx(stored.predicted_s, rel=1e-6)

    # A second run finds everything measured.
    command = [*kernelcast, "collect", "compute", "--device", "cpu", "--db", str(database)]
    command += ["--plan", str(tmp_path / "plan.toml")]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.startswith(f"{database}: 0 measured, ")
