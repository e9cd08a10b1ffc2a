"""Plain-text tables for a terminal or a file: aligned columns, spaces and one rule.

A table wider than the terminal is narrowed step by step: headers are wrapped, optional columns dropped (and named),
texts wrapped; at last each row becomes a block with a line per column.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from textwrap import wrap
from typing import Any, TypeVar

import click

from kernelcast.cli import terminal
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import printable
from kernelcast.runtime.views.formatting import percent, seconds

T = TypeVar("T")

_GAP = "  "
_ROWS_FOR_WIDTHS = 1_000
_LEAST_TEXT = 12
"""Least width of a wrapped text."""


def text_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    indent: str = "",
    width: int | None = None,
    optional: Sequence[str] = (),
) -> str:
    """A table of texts. Columns of numbers are aligned right.

    `width` is its maximum width (the terminal's if None); `optional` names columns to drop if it is wider, in this
    order. Returns lines joined by newlines, without trailing spaces; only headers if there are no rows.
    """
    room = (width or terminal.width()) - len(indent)
    rows = [[_cell(cell) for cell in row] for row in rows]
    shape = _shaped(headers, rows, room, optional)
    lines = list(shape.lines(rows))
    if shape.left_out:
        lines.append(f"(not shown at this width: {', '.join(shape.left_out)})")
    return "\n".join(indent + line if line else "" for line in lines)


def table_of(
    rows: Iterable[T],
    *columns: tuple[str, Callable[[T], str]],
    indent: str = "",
    optional: Sequence[str] = (),
) -> str:
    """A table with a row per value; a column is a header and a function from value to text."""
    cells = [[text(row) for _, text in columns] for row in rows]
    return text_table([head for head, _ in columns], cells, indent=indent, optional=optional)


def print_table(rows: Iterable[T], *columns: tuple[str, Callable[[T], str]], **more: Any) -> None:
    click.echo(table_of(rows, *columns, **more))


def _cell(text: str) -> str:
    """A text on one line, whose widths are those printed."""
    return printable(text).replace("\n", "\\n")


def signed_percent(share: float | None, digits: int = 1) -> str:
    """`+1.2 %`; a dash for None."""
    sign = "+" if share is not None and 0 <= share < math.inf else ""
    return sign + percent(share, digits=digits)


def print_components(rows: Iterable[tuple[str, float, float | None]]) -> None:
    """Print components of a step: name, predicted and measured seconds, and the error."""
    print_table(
        rows,
        ("component", lambda row: row[0]),
        ("predicted", lambda row: seconds(row[1])),
        ("measured", lambda row: seconds(row[2]) if row[2] else "-"),
        ("error", lambda row: f"{row[1] / row[2] - 1:+.1%}" if row[2] else "-"),
        indent="  ",
    )


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[str]], *, width: int) -> Iterator[str]:
    """Lines of a table of any length, one by one; the first thousand rows set the column widths."""
    rest = ([_cell(cell) for cell in row] for row in rows)
    first = list(islice(rest, _ROWS_FOR_WIDTHS))
    shape = _shaped(headers, first, width, ())
    yield from shape.lines(first)
    yield from shape.more(rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Layout of a table: columns, widths, alignment; without `widths`, each cell has a line of its own."""

    headers: tuple[str, ...]
    columns: tuple[int, ...]
    widths: tuple[int, ...] | None
    right: tuple[bool, ...]
    left_out: tuple[str, ...]
    room: int

    def lines(self, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        if self.widths is not None:
            heads = [
                _broken(self.headers[column], size)
                for column, size in zip(self.columns, self.widths, strict=True)
            ]
            high = max(map(len, heads), default=0)
            yield from self._lines([[""] * (high - len(head)) + head for head in heads], self.widths)
            yield _GAP.join("-" * width for width in self.widths)
        yield from self.more(rows)

    def more(self, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        for row in rows:
            cells = [row[column] for column in self.columns]
            if self.widths is None:
                yield from self._record(cells)
            else:
                parts = [_broken(cell, size) for cell, size in zip(cells, self.widths, strict=True)]
                yield from self._lines(parts, self.widths)

    def _lines(self, parts: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
        for line in range(max(map(len, parts), default=0)):
            texts = [part[line] if line < len(part) else "" for part in parts]
            set_cells = [
                text.rjust(width) if flush else text.ljust(width)
                for text, width, flush in zip(texts, widths, self.right, strict=True)
            ]
            yield _GAP.join(set_cells).rstrip()

    def _record(self, cells: Sequence[str]) -> Iterator[str]:
        longest = max(len(self.headers[column]) for column in self.columns)
        for column, cell in zip(self.columns, cells, strict=True):
            for index, part in enumerate(_broken(cell, max(_LEAST_TEXT, self.room - longest - len(_GAP)))):
                head = "" if index else self.headers[column]
                yield f"{head:{longest}}{_GAP}{part}".rstrip()
        yield ""


def _shaped(
    headers: Sequence[str], rows: Sequence[Sequence[str]], room: int, optional: Sequence[str]
) -> _Shape:
    bodies = list(zip(*rows, strict=True)) or [()] * len(headers)
    right = [bool(body) and all(map(_is_numeric, body)) for body in bodies]
    inside = [max(map(len, body), default=0) for body in bodies]
    whole = [max(len(head), size) for head, size in zip(headers, inside, strict=True)]
    broken = [max(_longest_word(head), size) for head, size in zip(headers, inside, strict=True)]
    shown, left_out = list(range(len(headers))), []

    def total(sizes: Sequence[int]) -> int:
        return sum(sizes[column] for column in shown) + len(_GAP) * (len(shown) - 1)

    sizes = whole if total(whole) <= room else broken
    for name in optional:
        if total(sizes) > room and name in headers:
            shown.remove(headers.index(name))
            left_out.append(name)
    if total(whole) <= room:
        sizes = whole
    least = [
        size if flush else min(size, max(_LEAST_TEXT, _longest_word(head)))
        for head, size, flush in zip(headers, sizes, right, strict=True)
    ]
    fits = total(least) <= room
    while fits and total(sizes) > room:
        sizes = list(sizes)
        widest = max((column for column in shown if sizes[column] > least[column]), key=sizes.__getitem__)
        sizes[widest] -= 1
    return _Shape(
        headers=tuple(headers),
        columns=tuple(shown),
        widths=tuple(sizes[column] for column in shown) if fits or not rows else None,
        right=tuple(right[column] for column in shown),
        left_out=tuple(left_out),
        room=room,
    )


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _broken(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return wrap(cell, max(1, width), break_on_hyphens=False) or [""]


_NUMBER = re.compile(r"[-−+≤]? ?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?(?: ?%| [^\s0-9]+)?")
"""`1,234`, `12.5 %`, `0.3 ms`, `≤ 64.4%`; not `1f1b`, a date, or a range or product, which are read from the left."""


def _is_numeric(cell: str) -> bool:
    # An empty cell or a dash does not speak against numbers.
    return not cell.strip("-– ") or _NUMBER.fullmatch(cell) is not None
