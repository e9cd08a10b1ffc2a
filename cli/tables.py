"""Plain-text tables for a terminal or a file: aligned columns, nothing but spaces and one rule."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

_GAP = "  "
_ROWS_FOR_WIDTHS = 1_000


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """A table of texts. Columns whose every cell looks like a number are set flush right.

    Returns lines joined by newlines, without trailing spaces; headers alone when there are no rows.
    """
    return "\n".join(_lines(headers, rows, (), indent))


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table of any length, as its rows come; the first thousand decide how wide columns are."""
    rest = iter(rows)
    yield from _lines(headers, list(islice(rest, _ROWS_FOR_WIDTHS)), rest, "")


def _lines(
    headers: Sequence[str], first: Sequence[Sequence[str]], rest: Iterable[Sequence[str]], indent: str
) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(headers, *first, strict=True)]
    right = [bool(first) and all(map(_is_numeric, column)) for column in zip(*first, strict=True)]
    right += [False] * (len(headers) - len(right))
    for line in chain([headers, ["-" * width for width in widths]], first, rest):
        yield _line(line, widths, right, indent)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], indent: str) -> str:
    set_cells = [
        cell.rjust(width) if flush else cell.ljust(width)
        for cell, width, flush in zip(cells, widths, right, strict=True)
    ]
    return (indent + _GAP.join(set_cells)).rstrip()


_NUMBER = re.compile(r"[-−+≤]? ?[0-9][0-9.,]*(?:e[-+]?[0-9]+)?(?: ?%| [^\s0-9]+)?")
"""`1,234`, `12.5 %`, `0.3 ms`, `≤ 64.4%`; not `1f1b`, a date, or a range or product, which are read from the left."""


def _is_numeric(cell: str) -> bool:
    # An empty cell or a dash does not speak against numbers.
    return not cell.strip("-– ") or _NUMBER.fullmatch(cell) is not None


def seconds(value_s: float) -> str:
    """A time in the unit that reads best: `1.234 s`, `12.34 ms`, `5.6 µs`."""
    if value_s >= 1:
        return f"{value_s:.3f} s"
    if value_s >= 1e-3:
        return f"{value_s * 1e3:.2f} ms"
    return f"{value_s * 1e6:.1f} µs"


def seconds_precisely(value_s: float) -> str:
    """A positive time in seconds, to three decimals or four digits: `1.234 s`, `0.004105 s`."""
    decimals = max(3, 3 - math.floor(math.log10(value_s)))
    return f"{value_s:.{decimals}f} s"
