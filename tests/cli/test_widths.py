"""Nothing that goes to no terminal is wider than 100 columns, but commands to copy, or coloured; shells complete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.printed import without_next

ROOT = Path(__file__).parent.parent.parent
ASKED = "--model llama-3-8b --gpus 64 --global-batch 512 --tokens 1T"
COMMANDS = [
    f"predict --hardware h100-sxm {ASKED}",
    f"predict --hardware h100-sxm {ASKED} --warnings",
    f"predict --hardware h100-sxm,h200-sxm,b200-sxm {ASKED} --price 2",
    f"search --hardware h100-sxm {ASKED} --pareto",
    "hardware",
    "hardware h100-sxm",
    "fabric list",
    "stack list",
    "models",
    "db info tests/data/small.db",
    "bundle info runtime/shipped/bundles/a100-sxm.kcast",
    "trace report tests/data/traces/cuda.json",
]


def printed(arguments: str, **variables: str) -> str:
    """What a command prints into a pipe."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | variables
    command = [sys.executable, "-m", "kernelcast.cli.main", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_have_at_most_100_columns(command: str) -> None:
    text = without_next(printed(command))
    assert [line for line in text.splitlines() if len(line) > 100] == []
    assert "\x1b" not in text


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_give_way(columns: int) -> None:
    lines = without_next(printed(COMMANDS[0], COLUMNS=str(columns))).splitlines()
    assert 60 < max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("predict --model llama-3-", "llama-3-8b"),
        ("predict --hardware h100-sxm,h2", "h100-sxm,h200-sxm"),
        ("search --fabric h100-3", "h100-3200g"),
        ("walltime --stack meg", "megatron-core"),
        ("predict --schedule zero", "zero_bubble"),
        ("fabric show h100-3", "h100-3200g"),
        ("pred", "predict"),
    ],
)
def test_shells_complete_names(typed: str, name: str) -> None:
    words = f"kernelcast {typed}"
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    found = subprocess.run(
        [sys.executable, "-c", "from kernelcast.cli.main import main; main()"],
        capture_output=True,
        text=True,
        env=os.environ | variables | {"_KERNELCAST_COMPLETE": "bash_complete"},
        check=False,
    )
    assert f"plain,{name}" in found.stdout.splitlines()
