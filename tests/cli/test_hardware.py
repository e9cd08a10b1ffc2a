"""Hardware that ships: listed, shown, answered, refused in one line."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.hardware import hardware
from kernelcast.cli.predict import predict
from kernelcast.cli.search import search_
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped.hardware import shipped_hardware

ROOT = Path(__file__).parent.parent.parent
LAYOUT = ["--model", "llama-3-8b", "--tp", "4", "--dp", "16", "--micro-batch", "1", "--global-batch", "256"]


def run(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)  # type: ignore[arg-type]


def test_it_is_listed() -> None:
    text = run(hardware).stdout
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in shipped_hardware())
    values = json.loads(run(hardware, "--json").stdout)
    assert [one["name"] for one in values["hardware"]] == list(shipped_hardware())


@pytest.mark.parametrize("name", shipped_hardware())
def test_each_answers_with_its_memory_and_peak(name: str) -> None:
    result = run(predict, "--hardware", name, *LAYOUT, "--json")
    assert result.exit_code == 0
    estimate = json.loads(result.stdout)
    assert 0.05 < estimate["mfu"] < 0.7
    assert estimate["memory"]["gpu_memory_bytes"] == devices()[name].memory_bytes
    low_s, high_s = estimate["interval_s"]
    assert 1.2 < high_s / low_s < 3
    # Collectives are those of the fabric that is named, whatever they were measured over.
    assert estimate["provenance"]["collectives"]["name"] == shipped_hardware()[name].fabric
    assert estimate["provenance"]["collectives"]["kind"] == "described"


@pytest.mark.parametrize("name", shipped_hardware())
def test_bundles_hold_what_computes(name: str) -> None:
    bundle = Estimator.load(shipped_hardware()[name].bundle).bundle
    assert not any(OPERATORS[operator].is_collective for operator, _ in bundle.entries)
    values = json.loads(run(hardware, name, "--json").stdout)
    known = {(one["operator"], one["direction"]): one["how"] for one in values["operators"]}
    assert known["gemm", "forward"] == "measured"
    assert known["gemm", "weight_gradient"] == "measured as a sum"
    assert known["swiglu", "forward"] == "substituted"
    assert "swiglu" in run(hardware, name).stdout


def test_a_search_takes_it_too() -> None:
    result = run(
        search_, "--hardware", "a100-sxm", "--model", "llama-2-7b", "--gpus", "16", "--global-batch", "64"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("best of ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "tpu-v5"], "hardware is 'tpu-v5', expected one that ships: a100-sxm, gh200"),
        ([], "neither of --bundle and --hardware given, expected one of them"),
        (
            ["--hardware", "gh200", "--bundle", "a.kcast"],
            "both of --bundle and --hardware given, expected one",
        ),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], message: str) -> None:
    result = run(predict, *arguments, *LAYOUT)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(message)


def test_readme_shows_what_is_printed() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(
        r"^\$ \.venv/bin/kernelcast predict (.*) \\\n +\| grep -E '(.*)'\n((?:.*\n)*?)```$",
        page,
        re.MULTILINE,
    )
    assert example is not None
    printed = run(predict, *example[1].split()).stdout.splitlines()
    assert example[3].splitlines() == [line for line in printed if re.search(example[2], line)]
