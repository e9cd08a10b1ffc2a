"""What people read on a terminal: lines no wider than it, headings and warnings that stand out, what to do next.

click leaves colours out where the output is no terminal, `coloured` where NO_COLOR is set.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable
from textwrap import wrap

import click

from kernelcast.runtime.json_text import json_text

MOST_TEXT = 100
"""Columns of running text at most, and of all output that goes to no terminal, unless COLUMNS says another number."""
_LEAST = 40
_LABEL = 10
_QUIET, _TYPED = "kernelcast.quiet", "kernelcast.typed"
_UNIT = re.compile(
    r"(?<=[0-9]) (?=(?:%|×|days|h|min|m?s|µs|[KMGT]?i?B(?:/s)?|[kMGTP]?FLOP/s|Gbit/s)(?![A-Za-z]))"
)
"""The blank between a number and its unit, at which no line is broken."""
_UNLIMITED = 1 << 20


def width() -> int:
    """Columns of the terminal, or what COLUMNS says; 100 where the output goes elsewhere."""
    return max(_LEAST, shutil.get_terminal_size((MOST_TEXT, 24)).columns)


def _text_width() -> int:
    return width() if os.environ.get("COLUMNS") else min(width(), MOST_TEXT)


def data_width() -> int:
    """Columns of rows that programs may read: not limited where the output is no terminal."""
    return width() if sys.stdout is not None and sys.stdout.isatty() else _UNLIMITED


def wrapped(text: str, *, begin: str = "", indent: str = "  ") -> str:
    """`begin` and a text, broken at blanks; lines after the first begin with `indent`."""
    lines = wrap(
        begin + _UNIT.sub("\N{NO-BREAK SPACE}", text),
        _text_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def say(text: str, *, err: bool = False) -> None:
    """Print running text: lines that are too long are broken, and go on two columns further in."""
    for line in text.split("\n"):
        inside = line[: len(line) - len(line.lstrip())]
        click.echo(wrapped(line.strip(), begin=inside, indent=f"{inside}  "), err=err)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A line for each label and text, texts flush with each other."""
    known = list(rows)
    size = max(_LABEL, *(len(label) + 2 for label, _ in known))
    return "\n".join(wrapped(text, begin=label.ljust(size), indent=" " * size) for label, text in known)


def heading(text: str) -> str:
    """A line that stands out."""
    return click.style(text, bold=True)


def title(text: str, under: str) -> str:
    """A section: its heading, and what stands under it."""
    return f"{heading(wrapped(text))}\n{under}"


def warning(text: str) -> str:
    """One warning."""
    return wrapped(text, begin="warning: ").replace("warning:", click.style("warning:", fg="yellow"), 1)


def note(text: str, *, err: bool = False) -> None:
    """Print running text that is not the answer: nothing with --quiet."""
    if not is_quiet():
        say(text, err=err)


def print_json(document: object) -> None:
    """Print a document as JSON."""
    click.echo(json_text(document, indent=2))


def coloured() -> bool | None:
    """False where NO_COLOR is set (no-color.org) or the terminal is a dumb one, else None: on a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def is_quiet() -> bool:
    """Whether --quiet is given to the command that runs."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def _set_quiet(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="The answer alone: no details, warnings, progress, or what to do next.",
)
"""The option that every command has (cli/lazy.py)."""


def remember_typed(context: click.Context, words: Iterable[str]) -> None:
    """Keep what was typed after `kernelcast`, for `typed_again`."""
    context.meta[_TYPED] = tuple(words)


def typed_again(*more: str, without: Collection[str] = ()) -> str:
    """The command that runs as it was typed, with further words, and without some options and their values."""
    context = click.get_current_context()
    words = iter(context.meta.get(_TYPED) or (context.info_name or "",))
    kept = []
    for word in words:
        if word in without:
            next(words, None)
        elif word.partition("=")[0] not in without:
            kept.append(word)
    return command_line(*kept, *more)


def command_line(*words: object) -> str:
    """A command of kernelcast, as a shell takes it."""
    return shlex.join(["kernelcast", *map(str, words)])


def print_next(*steps: tuple[str, str]) -> None:
    """What a reader may do next: commands, each with what it does; nothing with --quiet.

    Commands are there to be copied: each stands whole on a line of its own, however long it is.
    """
    if is_quiet() or not steps:
        return
    lines = ["", click.style("next:", dim=True)]
    for command, purpose in steps:
        remark = f"# {purpose}"
        if len(command) + len(remark) + 4 <= _text_width():
            lines.append(f"  {command}  {click.style(remark, dim=True)}")
        else:
            lines += [click.style(wrapped(remark, begin="  ", indent="  # "), dim=True), f"  {command}"]
    click.echo("\n".join(lines))
