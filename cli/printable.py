"""What is printed passes here: control characters of others' text become `\\x1b`, colours are our own.

Names, titles and descriptions come from files of strangers. While `printable_streams` is open, standard output and
standard error escape every control character in what is written to them, whoever writes it (click, `print`, logging, a
CSV writer). Styles of `styled` are written with a key drawn at the start, which no file can know.
"""

import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from os import environ
from typing import Any, TextIO

from kernelcast.runtime.errors import printable

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
