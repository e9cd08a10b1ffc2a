"""`kernelcast models`: built-in models, one of them, and files, as text and as JSON."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.models import models
from kernelcast.runtime.request.models import built_in_names

pytestmark = pytest.mark.usefixtures("wide")

CONFIGS = Path(__file__).parents[1] / "runtime" / "request" / "models" / "configs"


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(models, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_all() -> None:
    lines = run().stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(built_in_names())
    [mixtral] = [line.split() for line in lines if line.startswith("mixtral-8x7b")]
    assert mixtral[1:] == ["46,702,792,704", "12,879,925,248", "32", "4,096", "32,768"]


def test_one_with_its_fields() -> None:
    lines = [line.split() for line in run("openai/gpt-oss-20b").stdout.splitlines()]
    assert ["sliding_window", "128"] in lines
    assert ["parameters", "20914757184"] in lines


def test_files() -> None:
    path = CONFIGS / "qwen2-7b.json"
    result = run(str(path), "phi-4", "--json")
    qwen, phi = json.loads(result.stdout)
    assert (qwen["parameters"], qwen["biases"], phi["kv_heads"]) == (7_615_616_512, "qkv", 10)
    [note] = qwen["model_notes"]
    assert "max_position_embeddings is 131072" in note
    assert " ".join(result.stderr.split()) == f"warning: {note}"
    assert "model_notes" not in phi
