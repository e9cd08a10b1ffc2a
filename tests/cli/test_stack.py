"""`--stack` wherever steps are predicted, and `kernelcast stack list`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.predict import predict
from kernelcast.cli.search import search_
from kernelcast.cli.stack import list_
from kernelcast.cli.walltime import walltime
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.stack import shipped_stacks, stack_named
from kernelcast.runtime.views.formatting import percent
from kernelcast.serve.answering import of_request
from kernelcast.serve.loaded import Loaded
from kernelcast.walltime import script_job
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Path]
MODEL = "hidden_size = 64\nsequence_length = 8\nattention_heads = 8\nlayers = 4\nvocabulary_size = 100\n"
OURS = """name = "ours"
software = "some"
source = "a test"
attention = 2.0
compute = 2.0
exposed_share = 0.5
residual = 0.05
"""
LAYOUT = ("--micro-batch", "1", "--micro-batches", "2")


@pytest.fixture(name="given")
def given_fixture(make_bundle: Make, tmp_path: Path) -> list[str]:
    """A bundle, a model and a stack whose computing takes twice as long."""
    (tmp_path / "tiny.toml").write_text(MODEL)
    (tmp_path / "ours.toml").write_text(OURS)
    return ["--bundle", str(make_bundle()), "--model", str(tmp_path / "tiny.toml")]


def asked(command: object, *words: str) -> dict[str, object]:
    result = CliRunner().invoke(command, list(words), catch_exceptions=False)  # type: ignore[arg-type]
    found: dict[str, object] = json.loads(result.output)
    return found


def test_predictions_take_twice_as_long(given: list[str], tmp_path: Path) -> None:
    ours = str(tmp_path / "ours.toml")
    without = asked(predict, *given, *LAYOUT, "--json")
    found = asked(predict, *given, *LAYOUT, "--stack", ours, "--json")
    assert found["step_time_s"] == pytest.approx(2 * without["step_time_s"])  # type: ignore[operator]
    assert without["provenance"]["stack"] is None  # type: ignore[index]
    assert found["provenance"]["stack"]["name"] == "ours"  # type: ignore[index]
    shown = CliRunner().invoke(predict, [*given, *LAYOUT, "--stack", ours], catch_exceptions=False).output
    assert (
        "stack     ours: attention × 2.000, other computing × 2.000, exposed share 0.50; not fitted" in shown
    )
    assert "the residual of the stack" in shown


def test_searches_and_walltimes_take_the_stack(given: list[str], tmp_path: Path) -> None:
    ours = str(tmp_path / "ours.toml")
    words = (*given, "--gpus", "1", "--global-batch", "2", "--gpu-memory", "any", "--json")
    plain, found = asked(search_, *words), asked(search_, *words, "--stack", ours)
    times = [one["best"]["step_time_s"] for one in (plain, found)]  # type: ignore[index]
    assert times[1] == pytest.approx(2 * times[0])
    job = (*given, *LAYOUT, "--steps", "1000", "--format", "json")
    walltimes = [asked(walltime, *job, *more)["step_time_s"] for more in ((), ("--stack", ours))]
    assert walltimes[1] == pytest.approx(2 * walltimes[0])  # type: ignore[operator]


def test_others_scripts_name_stacks_but_no_files() -> None:
    line = "#!/bin/sh\n#KERNELCAST stack="
    named = script_job(f"{line}fsdp-composer\n", name="job", folder=None, environment={"KERNELCAST_SITE": ""})
    assert named.settings.text("stack") == "fsdp-composer"
    with pytest.raises(UsageError, match=r"stack is .*, expected a stack's name, not a path"):
        script_job(f"{line}/etc/ours.toml\n", name="job", folder=None, environment={"KERNELCAST_SITE": ""})


def test_a_server_knows_stacks_that_ship(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle())
    loaded = Loaded(name="b", estimator=estimator, loaded_at="", models={}, fabrics={}, site={}, problems=())
    same, values = of_request(loaded, {"tp": 1})
    assert (same, values) == (estimator, {"tp": 1})
    other, values = of_request(loaded, {"tp": 1, "stack": "fsdp-composer"})
    assert other.stack is not None
    assert values["exposed_share"] == other.stack.exposed_share
    for wrong in ("ours.toml", 3, []):
        with pytest.raises(UsageError, match=r"stack is .*, expected one of fsdp-composer"):
            of_request(loaded, {"stack": wrong})


def test_the_list_has_every_stack() -> None:
    shown = CliRunner().invoke(list_, [], catch_exceptions=False).output
    listed = json.loads(CliRunner().invoke(list_, ["--json"], catch_exceptions=False).output)
    assert [one["name"] for one in listed] == list(shipped_stacks())
    assert [one["kernel"] for one in listed if one["name"] == "fsdp-composer"] == ["flash-1-triton"]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for one in map(stack_named, shipped_stacks()):
        errors = (
            percent(one.residual),
            str(one.steps or "-"),
            percent(one.error_before),
            percent(one.error_left_out),
        )
        assert [f"{one.attention:.3f}" in line for line in lines if line.startswith(f"{one.name} ")] == [True]
        assert any(line.startswith(f"{one.name} ") and line.endswith(" ".join(errors)) for line in lines)


def test_an_unknown_stack_is_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("predict", *given, *LAYOUT, "--stack", "nemo") == 2
    assert capsys.readouterr().err.startswith("kernelcast: error: stack 'nemo' is unknown, known are ")


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ("attention", "--fix is 'attention', expected a factor and its value, such as attention=1"),
        ("attention=fast", "--fix is 'attention=fast', expected a factor and its value"),
        ("attention=1", "runs file "),
    ],
)
def test_factors_that_are_set(
    fixed: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.toml").write_text("wrong = 1\n")
    assert ended("stack", "fit", tmp_path / "runs.toml", "--fix", fixed) in (1, 2)
    assert capsys.readouterr().err.startswith(f"kernelcast: error: {message}")
