"""Every command line in README.md and docs/ is one that the command understands: verbs and options exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kernelcast.cli.lazy import DefaultGroup
from kernelcast.cli.main import kernelcast

ROOT = Path(__file__).parent.parent.parent
# commands.md is made of the commands' own help, which wraps lines.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "commands.md"),
]


def examples(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of code blocks that call kernelcast, continued lines joined, with the number of the line."""
    fenced, text = False, page.read_text(encoding="utf-8").replace("\\\n", "\\@")
    number = 0
    for line in text.splitlines():
        number += 1 + line.count("\\@")
        if line.lstrip().startswith("```"):
            fenced = not fenced
        call = re.search(
            r"(?:^|&& |--no-python |--kill-on-bad-exit=1 |bin/)kernelcast ([a-z-].*)",
            line.replace("\\@", " ").strip(),
        )
        if call and (fenced or line.startswith("    ")) and "…" not in line and "..." not in line:
            yield number, re.split(r" [|>;&]|\)$| # ", call[1] + " ")[0]


def understand(arguments: list[str]) -> None:
    """Find the command and let it parse its options; raises what click says of them."""
    context = click.Context(kernelcast, info_name="kernelcast")
    command: click.Command = kernelcast
    while isinstance(command, click.Group):
        if isinstance(command, DefaultGroup) and (not arguments or arguments[0].startswith("-")):
            arguments = [command.default, *arguments]
        if not arguments or arguments[0].startswith("-"):
            break
        found = command.get_command(context, arguments[0])
        assert found is not None, f"no command {arguments[0]!r} in {context.command_path}"
        context = click.Context(found, info_name=arguments[0], parent=context)
        command, arguments = found, arguments[1:]
    command.make_parser(context).parse_args(arguments)


LINES = [pytest.param(line, id=f"{page.name}:{number}") for page in PAGES for number, line in examples(page)]


@pytest.mark.parametrize("line", LINES)
def test_the_command_understands(line: str) -> None:
    try:
        understand(shlex.split(line, comments=True))
    except click.UsageError as error:
        pytest.fail(f"kernelcast {line}: {error.format_message()}")


def test_there_are_examples_and_wrong_ones_are_found() -> None:
    assert len(LINES) > 20
    with pytest.raises(click.NoSuchOption):
        understand(["train", "--db", "x.db", "--fly"])
    with pytest.raises(AssertionError):
        understand(["db", "fly"])
