"""Output for people: lines wrapped to the terminal, headings, warnings, next steps.

What is printed passes here: control characters of others' text become `\\x1b`, colours are our own.

Names, titles and descriptions come from files of strangers. While `printable_streams` is open, standard output and
standard error escape every control character in what is written to them, whoever writes it (click, `print`, logging, a
CSV writer). Styles of `styled` are written with a key drawn at the start, which no file can know; streams that show no
colours drop them.
"""

import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from os import environ
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple, TextIO, TypeAlias

import click

from kernelcast.runtime.errors import KernelcastError, printable
from kernelcast.runtime.json_text import json_text

_PRIVATE = 0xF0000  # a plane of Unicode for private use
_KEY = "".join(chr(_PRIVATE + secrets.randbelow(0xFFFE)) for _ in range(3))
_STYLE = re.compile(f"{_KEY}([{chr(_PRIVATE)}-{chr(_PRIVATE + 255)}])")
BOLD, DIM, RED, YELLOW = 1, 2, 31, 33
_PLAIN = 0


def styled(text: str, style: int) -> str:
    """A text in a style of ECMA-48, which a stream of `printable_streams` drops where it shows no colours."""
    if not isinstance(sys.stdout, _Printable):
        return text
    return f"{_KEY}{chr(_PRIVATE + style)}{text}{_KEY}{chr(_PRIVATE + _PLAIN)}"


@contextmanager
def printable_streams() -> Iterator[None]:
    """Write to standard output and standard error through this page; bytes (`buffer`) are written as they are."""
    with redirect_stdout(_wrapped(sys.stdout)), redirect_stderr(_wrapped(sys.stderr)):
        yield


def controlling(stream: TextIO) -> TextIO:
    """The stream beneath, for a progress bar that moves the cursor; its texts have to be `printable`."""
    return stream._stream if isinstance(stream, _Printable) else stream


def _wrapped(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, _Printable) else _Printable(stream)


class _Printable:
    """A text stream that escapes what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # No colours if NO_COLOR is set (no-color.org) or the terminal is dumb.
        no_colours = environ.get("NO_COLOR") or environ.get("TERM") == "dumb" or not stream.isatty()
        self._styles = "" if no_colours else "\x1b[{}m"

    def write(self, text: str) -> int:
        # Between two styles, texts are at the odd places: [text, style, text, style, text].
        pieces = _STYLE.split(text)
        pieces[::2] = map(printable, pieces[::2])
        pieces[1::2] = (self._styles.format(ord(style) - _PRIVATE) for style in pieces[1::2])
        self._stream.write("".join(pieces))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


MOST_TEXT = 100
"""Maximum width of running text, and of all output that goes to no terminal, unless COLUMNS is set."""
_LEAST = 40
_LABEL = 10
_QUIET, _TYPED = "kernelcast.quiet", "kernelcast.typed"
_UNIT = re.compile(
    r"(?<=[0-9]) (?=(?:%|×|days|h|min|m?s|µs|[KMGT]?i?B(?:/s)?|[kMGTP]?FLOP/s|Gbit/s)(?![A-Za-z]))"
)
"""The blank between a number and its unit, where no line is broken."""
_UNLIMITED = 1 << 20


def width() -> int:
    """Columns of the terminal, or COLUMNS; 100 if the output is not a terminal."""
    return max(_LEAST, shutil.get_terminal_size((MOST_TEXT, 24)).columns)


def _text_width() -> int:
    return width() if os.environ.get("COLUMNS") else min(width(), MOST_TEXT)


def data_width() -> int:
    """Columns of rows that programs may read: unlimited if the output is not a terminal."""
    return width() if sys.stdout is not None and sys.stdout.isatty() else _UNLIMITED


def wrapped(text: str, *, begin: str = "", indent: str = "  ") -> str:
    """`begin` and a text, wrapped at blanks; `indent` starts the lines after the first."""
    lines = wrap(
        begin + _UNIT.sub("\N{NO-BREAK SPACE}", text),
        _text_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def say(text: str, *, err: bool = False) -> None:
    """Print running text; long lines are wrapped, with an indent of two."""
    for line in text.split("\n"):
        inside = line[: len(line) - len(line.lstrip())]
        click.echo(wrapped(line.strip(), begin=inside, indent=f"{inside}  "), err=err)


Facts: TypeAlias = dict[str, str | Sequence[str] | None]
"""Texts by label: one, several, or None where there is nothing to say."""


def facts(rows: Facts) -> str:
    """A line for each text, after its label; texts aligned."""
    several = {label: [text] if isinstance(text, str) else text or () for label, text in rows.items()}
    known = [(label, text) for label, texts in several.items() for text in texts]
    size = max(_LABEL, *(len(label) + 2 for label, _ in known))
    return "\n".join(wrapped(text, begin=label.ljust(size), indent=" " * size) for label, text in known)


def heading(text: str) -> str:
    return styled(text, BOLD)


def title(text: str, under: str) -> str:
    return f"{heading(wrapped(text))}\n{under}"


def warning(text: str) -> str:
    return styled("warning:", YELLOW) + wrapped(text, begin="warning: ").removeprefix("warning:")


def note(text: str, *, err: bool = False) -> None:
    if not is_quiet():
        say(text, err=err)


class Shown(NamedTuple):
    """The answer of a command: a document for programs or what makes it, what prints it for people, status or error.

    `written` is a file whose name is printed last.
    """

    document: object
    show: Callable[[], object]
    status: int = 0
    error: KernelcastError | None = None
    written: Path | None = None


def print_json(document: object) -> None:
    click.echo(json_text(document, indent=2))


def is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def _set_quiet(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print only the answer: no details, warnings, progress or next steps.",
)
"""The option that every command has (cli/lazy.py)."""


def remember_typed(context: click.Context, words: Iterable[str]) -> None:
    """Keep the words typed after `kernelcast`, for `typed_again`."""
    context.meta[_TYPED] = tuple(words)


def typed_words(*, without: Collection[str] = ()) -> list[str]:
    """The running command as typed after `kernelcast`, without some options and their values."""
    context = click.get_current_context()
    words = iter(context.meta.get(_TYPED) or (context.info_name or "",))  # not remembered where Click runs it
    kept = []
    for word in words:
        if word in without:
            next(words, None)
        elif word.partition("=")[0] not in without:
            kept.append(word)
    return kept


def typed_again(*more: str, without: Collection[str] = ()) -> str:
    """The running command as typed, with more words, and without some options and their values."""
    return command_line(*typed_words(without=without), *more)


def command_line(*words: object) -> str:
    """A kernelcast command, quoted for a shell."""
    return shlex.join(["kernelcast", *map(str, words)])


def print_next(*steps: tuple[str, str]) -> None:
    """Print suggested next commands, each with its purpose; nothing with --quiet.

    Commands are meant to be copied, so they are never wrapped.
    """
    if is_quiet() or not steps:
        return
    lines = ["", styled("next:", DIM)]
    for command, purpose in steps:
        remark = f"# {purpose}"
        if len(command) + len(remark) + 4 <= _text_width():
            lines.append(f"  {command}  {styled(remark, DIM)}")
        else:
            lines += [styled(wrapped(remark, begin="  ", indent="  # "), DIM), f"  {command}"]
    click.echo("\n".join(lines))
