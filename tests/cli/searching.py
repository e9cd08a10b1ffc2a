"""What tests of `kernelcast search` share: a small model, and the command."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kernelcast.cli.main import kernelcast

MODEL = """
name = "tiny"
hidden_size = 64
sequence_length = 8
attention_heads = 8
layers = 6
vocabulary_size = 100
"""


def small_model(folder: Path) -> Path:
    """A model of 6 layers."""
    path = folder / "tiny.toml"
    path.write_text(MODEL)
    return path


def arguments(bundle: Path, model_file: Path, *more: str) -> list[str]:
    """Words of a search on 8 devices."""
    always = ["--bundle", str(bundle), "--model", str(model_file), "--gpus", "8", "--global-batch", "16"]
    return [*always, *more]


def run(bundle: Path, model_file: Path, *more: str) -> Result:
    """The search."""
    return CliRunner().invoke(kernelcast, ["search", *arguments(bundle, model_file, *more)])


def document(bundle: Path, model_file: Path, *more: str) -> dict[str, Any]:
    """What it prints as JSON."""
    result = run(bundle, model_file, "--json", *more)
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values
