"""What tests of `kernelcast search` share: a small model, a bundle, and the command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kernelcast.cli.main import kernelcast
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS

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


def small_bundle(make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]) -> Path:
    """Times that depend on the workload, on nodes of 4 devices."""
    times = {
        operator.name: linear_model([1e-3] * len(operator.features), number)
        for number, operator in enumerate(OPERATORS.values(), start=1)
    }
    return make_bundle(times, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)])


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
