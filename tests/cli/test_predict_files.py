"""`kernelcast predict --trace` and `--html`: the files exist and are sound, and refusals come before the work."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.predict import predict
from kernelcast.runtime import UsageError

Make = Callable[..., Path]
MODEL = """
name = "tiny"
hidden_size = 8
sequence_length = 4
attention_heads = 2
layers = 4
vocabulary_size = 100
"""


@pytest.fixture
def ask(make_bundle: Make, tmp_path: Path) -> Callable[..., Result]:
    """Predicts a step of 3 micro-batches on 2 stages."""
    model = tmp_path / "tiny.toml"
    model.write_text("[model]" + MODEL)
    question = ["--model", str(model), "--pp", "2", "--micro-batch", "1", "--micro-batches", "3"]

    def run(*arguments: str, bundle: Path | None = None) -> Result:
        path = str(bundle or make_bundle())
        return CliRunner().invoke(predict, ["--bundle", path, *question, *arguments])

    return run


def test_both_files(ask: Callable[..., Result], tmp_path: Path) -> None:
    trace, page = tmp_path / "step.json", tmp_path / "step.html"
    result = ask("--trace", str(trace), "--html", str(page), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["format"] == "kernelcast.estimate/2"
    assert result.stderr.splitlines() == [
        f"wrote {trace}: open it in ui.perfetto.dev or chrome://tracing",
        f"wrote {page}",
    ]
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert names.count("forward 2") == 2
    text = page.read_text(encoding="utf-8").removeprefix("<!doctype html>\n")
    assert ElementTree.fromstring(text).tag == "html"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--trace", "{}/none/step.json"), "--trace {}/none/step.json: no such folder {}/none"),
        (("--html", "{}"), "--html {}: is a folder, expected a file"),
    ],
)
def test_refused_before_the_bundle_is_read(
    ask: Callable[..., Result], tmp_path: Path, arguments: tuple[str, ...], line: str
) -> None:
    here = str(tmp_path)
    asked = (argument.replace("{}", here) for argument in arguments)
    result = ask(*asked, bundle=tmp_path / "missing.kcast")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == line.replace("{}", here)
