"""What tests of `kernelcast predict` share: a small model, and the command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.main import kernelcast

MODEL = """
[model]
name = "tiny"
hidden_size = 8
sequence_length = 4
attention_heads = 2
layers = 4
vocabulary_size = 100
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A model of 4 layers."""
    path = tmp_path / "tiny.toml"
    path.write_text(MODEL)
    return path


@pytest.fixture
def run() -> Callable[..., Result]:
    """`predict` of a bundle and a model's file, three micro-batches of one sample."""

    def predicted(bundle: Path, model_file: Path, *arguments: str) -> Result:
        files = ["--bundle", str(bundle), "--model", str(model_file)]
        return CliRunner().invoke(
            kernelcast, ["predict", *files, "--micro-batch", "1", "--micro-batches", "3", *arguments]
        )

    return predicted
