"""docs/commands.md is what `--help` says, and `--help` leaves nothing unsaid."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kernelcast.cli.main import VERBS
from kernelcast.docs import generate_commands
from kernelcast.runtime.request.fields import REQUEST

ROOT = Path(__file__).parent.parent.parent


COMMANDS: dict[str, click.Context] = dict(generate_commands.commands())
# Written before any test runs: click caches a command's help option on first use, and other tests use it
# commands without the group that they belong to.
PAGE: str = generate_commands.page()
every_command = pytest.mark.parametrize("name", COMMANDS)


def section(name: str) -> str:
    """What the page says of a command."""
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == PAGE, "docs/commands.md is not current: make docs"


def test_every_verb_is_on_the_page() -> None:
    assert {f"kernelcast {verb}" for verb in VERBS} <= set(COMMANDS)


@pytest.mark.parametrize("name", ["kernelcast", "kernelcast db info"])
def test_the_page_says_what_the_command_prints(name: str) -> None:
    command = [sys.executable, "-m", "kernelcast.cli.main", *name.split()[1:], "--help"]
    wide = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=wide)
    assert f"```text\n{done.stdout}```\n" in section(name)


@every_command
def test_a_command_says_what_it_does(name: str) -> None:
    command, verb = COMMANDS[name].command, VERBS.get(name.partition(" ")[2])
    assert command.help
    summary = verb.summary if verb else command.get_short_help_str(limit=100)
    assert summary.endswith(".")
    assert not summary.endswith("..."), "its summary is cut short: give the command a short_help"
    # An example of its own.
    if not isinstance(command, click.Group):
        # A line of its own, so that it can be copied; workers are started by a launcher.
        lines = [line.strip() for line in section(name).splitlines()]
        assert any(line.startswith((name, "OMP_NUM_THREADS=")) and name in line for line in lines)


PAPER = {old for field in REQUEST.values() for old in field.old}
"""Names of the paper, which are accepted but not shown."""


@every_command
def test_every_option_is_explained(name: str) -> None:
    help_text = " ".join(section(name).split())
    for parameter in COMMANDS[name].command.params:
        if isinstance(parameter, click.Option) and parameter.hidden:
            assert parameter.name in PAPER
        elif isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert all(option in help_text for option in parameter.opts)
        else:
            assert parameter.make_metavar(COMMANDS[name]) in help_text
