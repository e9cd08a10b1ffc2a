"""What people read on a terminal: lines no wider than it, headings and warnings that stand out, what to do next.

click leaves colours out where the output is no terminal; `main` sets them off where NO_COLOR is set.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from textwrap import wrap

import click

MOST_TEXT = 100
"""Columns of running text at most, and of all output that goes to no terminal, unless COLUMNS says another number."""
_LEAST = 40
_LABEL = 10
_QUIET = "kernelcast.quiet"
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


def is_quiet() -> bool:
    """Whether --quiet is given to the command that runs."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def set_quiet(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Let the command be quiet: a callback of its option."""
    context.meta[_QUIET] = value


def print_next(text: str) -> None:
    """What a reader may do next, as the last line of an answer; nothing with --quiet."""
    if not is_quiet():
        click.echo("\n" + click.style(wrapped(text, begin="next: "), dim=True))
