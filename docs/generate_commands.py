"""Write docs/commands.md: the help of every command, as `--help` prints it (`make docs`)."""

from collections.abc import Iterator
from pathlib import Path

import click

from kernelcast.cli.lazy import LazyGroup, Verb
from kernelcast.cli.main import VERBS, kernelcast

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "commands.md"
WIDTH = kernelcast.context_settings["max_content_width"] - 2  # what click leaves on a wide terminal

_BEGIN = """\
# Commands

What `--help` says of every command; written by `make docs`, and a test fails where it is not current. A command ends
with 0 when it succeeded, 1 when it failed, 2 when it was used wrongly, 130 when it was interrupted and 141
when the reader of its output exits. Errors are one line on standard error. The output of `--json` is in
[json.md](json.md).

"""


def page() -> str:
    """The whole page."""
    found = list(commands())
    contents = "".join(f"- [{name}](#{name.replace(' ', '-')})\n" for name, _ in found)
    return _BEGIN + contents + "".join(_section(name, context) for name, context in found)


def commands() -> Iterator[tuple[str, click.Context]]:
    """Every command with its full name, groups before what is in them; all extras must be installed."""
    root = click.Context(
        kernelcast, info_name="kernelcast", terminal_width=WIDTH, **kernelcast.context_settings
    )
    yield from _below(root)


def _below(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    yield context.command_path, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            if command := context.command.get_command(context, name):
                yield from _below(
                    click.Context(command, info_name=name, parent=context, terminal_width=WIDTH)
                )


def _section(name: str, context: click.Context) -> str:
    verb = _verb(name.split()[1:], context)
    extra = f"\nNeeds the extra `{verb.extra}`.\n" if verb and verb.extra else ""
    return f"\n## {name}\n{extra}\n```text\n{context.get_help()}\n```\n"


def _verb(words: list[str], context: click.Context) -> Verb | None:
    """What is known of a verb's extra: its own, or that of the group that it is in."""
    group = context.parent.command if context.parent else None
    if isinstance(group, LazyGroup) and words[-1] in group.verbs:
        return group.verbs[words[-1]]
    return VERBS.get(words[0]) if words else None


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(list(commands()))} commands")
