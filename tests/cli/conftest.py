"""What tests of commands share: a small model, a bundle, and `kernelcast predict`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.main import kernelcast
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS

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
def bundle(make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]) -> Path:
    """Times that depend on the workload, on nodes of 4 devices."""
    times = {
        operator.name: linear_model([1e-3] * len(operator.features), number)
        for number, operator in enumerate(OPERATORS.values(), start=1)
    }
    return make_bundle(times, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)])


@pytest.fixture
def run() -> Callable[..., Result]:
    """`predict` of a bundle and a model's file, three micro-batches of one sample."""

    def predicted(bundle: Path, model_file: Path, *arguments: str) -> Result:
        files = ["--bundle", str(bundle), "--model", str(model_file)]
        return CliRunner().invoke(
            kernelcast, ["predict", *files, "--micro-batch", "1", "--micro-batches", "3", *arguments]
        )

    return predicted
