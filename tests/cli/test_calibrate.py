"""`kernelcast calibrate`: what it prints and writes, when it writes nothing, and what answers say afterwards."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.bundle import bundle as bundle_command
from kernelcast.cli.calibrate import calibrate
from kernelcast.cli.predict import predict
from kernelcast.cli.search import search_
from kernelcast.cli.walltime import walltime
from kernelcast.runtime import DataError, read_bundle
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Path]
HEAD = """
site = "a site"
hardware = "something"
source = "a test"

[defaults]
model = "tiny"
gpus_per_node = 4
micro_batch = 1

[models.tiny]
hidden_size = 64
sequence_length = 8
attention_heads = 8
layers = 6
vocabulary_size = 100
"""
LAYOUTS = ((1, 1, 1, 2), (2, 1, 1, 4), (1, 2, 1, 4), (1, 1, 2, 2), (2, 2, 1, 8), (2, 1, 2, 4))
MODEL = '[model]\nname = "tiny"\nhidden_size = 64\nsequence_length = 8\nattention_heads = 8\nlayers = 6\n'


def predicted_s(bundle: Path, folder: Path, pp: int, tp: int, dp: int, m: int, *options: str) -> float:
    model = folder / "tiny.toml"
    model.write_text(MODEL + "vocabulary_size = 100\n")
    words = ["--bundle", bundle, "--model", model, "--pp", pp, "--tp", tp, "--dp", dp, "--micro-batch", 1]
    words += ["--micro-batches", m, "--gpus-per-node", 4, "--json"]
    result = CliRunner().invoke(predict, [*map(str, words), *options], catch_exceptions=False)
    return float(json.loads(result.output)["step_time_s"])


def runs_file(bundle: Path, folder: Path, errors: list[float], name: str = "runs.toml") -> Path:
    """A file of steps whose measured times are `errors` times the predicted times."""
    text = HEAD
    for (pp, tp, dp, m), error in zip(LAYOUTS, errors, strict=False):
        time_s = error * predicted_s(bundle, folder, pp, tp, dp, m)
        text += f"\n[[runs]]\npp = {pp}\nmp = {tp}\ndp = {dp}\nmicro_batches = {m}\nmeasured_s = {time_s!r}\n"
    path = folder / name
    path.write_text(text)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(calibrate, [str(word) for word in words])


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A bundle, six steps that all take 1.1 times as long, and what `calibrate` made of them."""

    bundle: Path
    runs: Path
    corrected: Path
    output: str


@pytest.fixture(scope="module")
def calibrated(
    tmp_path_factory: pytest.TempPathFactory, make_bundle_in: Callable[[Path], Make]
) -> Calibrated:
    """Made once, and only read."""
    folder = tmp_path_factory.mktemp("calibrated")
    bundle, corrected = make_bundle_in(folder)(optional_us=0.002), folder / "corrected.kcast"
    runs = runs_file(bundle, folder, [1.1] * 6)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "1000")
        result = run("--bundle", bundle, "--runs", runs, "-o", corrected)
    assert result.exit_code == 0, result.output
    return Calibrated(bundle=bundle, runs=runs, corrected=corrected, output=result.output)


def test_it_says_what_it_found_and_writes_it(calibrated: Calibrated, tmp_path: Path) -> None:
    bundle, corrected, output = calibrated.bundle, calibrated.corrected, calibrated.output
    assert f"{bundle}, timeline simulate, 6 measured steps of a site" in output
    assert "The correction helps" in output
    assert "\n\ncross-validated, by number of parameters: 1: " in output
    assert "mean of absolute errors: 9.09% before" in output
    assert output.endswith("corrected.kcast: written\n")
    before, after = (predicted_s(one, tmp_path, 1, 1, 1, 2) for one in (bundle, corrected))
    assert after == pytest.approx(1.1 * before, rel=0.01)
    assert predicted_s(corrected, tmp_path, 1, 1, 1, 2, "--no-calibration") == before
    again = tmp_path / "again.kcast"
    assert run("--bundle", bundle, "--runs", calibrated.runs, "-o", again).exit_code == 0
    assert again.read_bytes() == corrected.read_bytes()


def test_json(calibrated: Calibrated, tmp_path: Path) -> None:
    bundle, corrected = calibrated.bundle, tmp_path / "corrected.kcast"
    words = ("--bundle", bundle, "--parameters", 2, "--json", "--runs")
    document = json.loads(run(*words, calibrated.runs, "-o", corrected).output)
    assert document["format"] == "kernelcast.calibration/1"
    assert document["helps"] is True
    errors = document["mean_abs_error"]
    assert errors["after"] < errors["left_out"] < errors["before"]
    assert set(document["left_out_by_parameters"]) == {"1", "2", "3", "4"}
    assert document["left_out_by_parameters"]["2"] == pytest.approx(errors["left_out"], abs=1e-8)
    assert [row["class"] for row in document["classes"]] == document["calibration"]["classes"]
    assert document["written_digest"] == read_bundle(corrected).digest
    assert document["calibration"]["runs"][0]["label"] == "tiny (1-1-1)"
    # Only reported.
    assert json.loads(run(*words, runs_file(bundle, tmp_path, [1.1])).output)["written"] is None


def test_what_does_not_help_is_written_by_force_only(make_bundle: Make, tmp_path: Path) -> None:
    bundle, corrected = make_bundle(), tmp_path / "corrected.kcast"
    words = ("--bundle", bundle, "--runs", runs_file(bundle, tmp_path, [1.1, 0.9, 1.1, 0.9]))
    reported = run(*words)
    assert reported.exit_code == 0
    assert "does NOT help" in reported.output
    assert "written" not in reported.output
    refused = run(*words, "-o", corrected)
    assert isinstance(refused.exception, DataError)
    assert "not written: the correction does not reduce the cross-validated error (" in str(refused.exception)
    assert not corrected.exists()
    assert run(*words, "-o", corrected, "--force").exit_code == 0
    assert read_bundle(corrected).manifest.calibration is not None


def test_one_configuration_four_times_proves_nothing_either(make_bundle: Make, tmp_path: Path) -> None:
    bundle = make_bundle()
    runs = runs_file(bundle, tmp_path, [1.1])
    head, step = runs.read_text().split("[[runs]]")
    runs.write_text(head + 4 * f"[[runs]]{step}\n")
    text = run("--bundle", bundle, "--runs", runs).output
    assert "With steps of one configuration cross-validation is not possible" in text
    assert "% cross-validated" not in text
    document = json.loads(run("--bundle", bundle, "--runs", runs, "--json").output)
    assert (document["helps"], document["mean_abs_error"]["left_out"]) == (None, None)
    assert set(document["left_out_by_parameters"].values()) == {None}


def test_what_makes_predictions_doubtful_is_noted_once(make_bundle: Make, tmp_path: Path) -> None:
    # Widths of 64 are above 60 in every step, sizes that a layout decides in some.
    bundle = make_bundle(largest=60.0)
    runs = runs_file(bundle, tmp_path, [1.1] * 3)
    lines = run("--bundle", bundle, "--runs", runs).output.splitlines()
    notes = [line for line in lines if "note: " in line]
    document = json.loads(run("--bundle", bundle, "--runs", runs, "--json").output)
    assert [one["label"] for one in document["runs"]] == [
        one["label"] for one in document["calibration"]["runs"]
    ]
    assert all(one["warnings"] for one in document["runs"])
    [note] = notes
    assert note.startswith("  note: extrapolated: gemm up to ")
    # With one step there is no need to name it; of several, the only one is named.
    alone = runs_file(bundle, tmp_path, [1.1], name="one.toml")
    assert "\n  note: extrapolated: " in run("--bundle", bundle, "--runs", alone).output
    few = make_bundle({"gradient_clip": 500.0}, largest=2.5e5, name="few.kcast")
    text = run("--bundle", few, "--runs", runs_file(few, tmp_path, [1.1] * 2)).output
    assert (
        "\n  note: tiny (1-1-1): extrapolated: gradient_clip up to 1.27× beyond measured parameters (" in text
    )
    assert "note:" not in run("--bundle", make_bundle(), "--runs", runs).output


def test_rows_and_messages_tell_steps_of_one_layout_apart(make_bundle: Make, tmp_path: Path) -> None:
    bundle = make_bundle()
    runs = runs_file(bundle, tmp_path, [1.1])
    head, step = runs.read_text().split("[[runs]]")
    more = step.replace("micro_batches = 2", "micro_batches = 1")
    runs.write_text("[[runs]]".join((head, step, step, more)))
    document = json.loads(run("--bundle", bundle, "--runs", runs, "--json").output)
    labels = [one["label"] for one in document["calibration"]["runs"]]
    assert labels == ["tiny (1-1-1), 2 × 1, no. 1", "tiny (1-1-1), 2 × 1, no. 2", "tiny (1-1-1), 1 × 1"]
    runs.write_text("[[runs]]".join((head, step, more.replace("measured_s = ", "measured_s = 1"))))
    refused = run("--bundle", bundle, "--runs", runs)
    assert f"runs file {runs}: run tiny (1-1-1), 1 × 1: measured_s is 10.0046" in str(refused.exception)


def test_wrong_use_and_wrong_files(
    make_bundle: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle()
    runs = runs_file(bundle, tmp_path, [1.1] * 6)
    wide = tmp_path / "wide.toml"
    wide.write_text(
        HEAD + '[[runs]]\nname = "wide"\npp = 1\nmp = 3\ndp = 1\nmicro_batches = 1\nmeasured_s = 1\n'
    )
    unknown = tmp_path / "unknown.toml"
    unknown.write_text(runs.read_text().replace('model = "tiny"', 'model = "gpt-9"'))
    poor = make_bundle(without=["all_reduce"], name="poor.kcast")
    in_ms = runs_file(bundle, tmp_path, [1100.0], name="in_ms.toml")
    for words, code, message in (
        (("--bundle", bundle, "--runs", wide), 2, "run 1 (wide): tp is 3, expected a divisor of"),
        (("--bundle", bundle, "--runs", unknown), 2, "run 1: model 'gpt-9' is unknown"),
        (("--bundle", poor, "--runs", runs), 1, f"runs file {runs}: run tiny (1-2-1): bundle "),
        (("--bundle", bundle, "--runs", in_ms), 2, f"runs file {in_ms}: run tiny (1-1-1): measured_s is "),
        (("--bundle", bundle, "--runs", tmp_path / "none.toml"), 1, "no such file"),
        (("--bundle", bundle, "--db", tmp_path / "none.db"), 1, "none.db"),
        (("--bundle", tmp_path / "none.kcast", "--runs", runs), 1, "none.kcast: no such file"),
        (("--bundle", bundle, "--runs", runs, "--parameters", "5"), 2, "5 is not in the range 1<=x<=4"),
    ):
        assert ended("calibrate", *words) == code
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_every_answer_of_a_calibrated_bundle_says_so(calibrated: Calibrated) -> None:
    bundle, corrected = calibrated.bundle, calibrated.corrected
    asked = ["--bundle", str(corrected), "--model", str(bundle.parent / "tiny.toml"), "--micro-batch", "1"]
    asked += ["--micro-batches", "2"]
    text = CliRunner().invoke(predict, asked).output
    assert "90 %: the operators' errors and the residual of the calibration" in text
    assert "; for timeline simulate, by 6 measured steps of a site: mean error 9.1 % before, " in text
    closed = CliRunner().invoke(predict, [*asked, "--timeline", "closed-form"]).output
    assert "calibration  NOT applied, fitted for timeline simulate: " in closed
    off = CliRunner().invoke(predict, [*asked, "--no-calibration"]).output
    assert "calibration  NOT applied, switched off: " in off
    explained = CliRunner().invoke(predict, [*asked, "--explain", "gelu"]).output
    assert "calibrated × 1." in explained
    info = CliRunner().invoke(bundle_command, ["info", str(corrected)]).output
    assert "by 6 measured steps of a site" in info
    diff = CliRunner().invoke(bundle_command, ["diff", str(bundle), str(corrected)]).output
    assert "calibration  none" in diff
    assert "0 changed" in diff
    verified = CliRunner().invoke(bundle_command, ["verify", str(corrected)])
    assert verified.exit_code == 0
    space = [*asked[:4], "--gpus", "2", "--global-batch", "4", "--gpus-per-node", "4"]
    assert "calibration  compute-bound" in CliRunner().invoke(search_, space).output
    assert (
        "calibration  NOT applied, switched off"
        in CliRunner().invoke(search_, [*space, "--no-calibration"]).output
    )
    job = [*asked, "--steps", "10"]
    times = [
        json.loads(CliRunner().invoke(walltime, [*job, "--format", "json", *more]).stdout)
        for more in ([], ["--no-calibration"], ["--timeline", "closed-form"])
    ]
    assert times[0]["step_time_s"] > times[1]["step_time_s"]
    assert times[0]["provenance"]["calibration"]["applied"] is True
    assert times[1]["provenance"]["calibration"]["reason"] == "switched off"
    assert any(
        "calibration is not applied: it was fitted for timeline simulate" in one
        for one in times[2]["warnings"]
    )
