"""Plain-text tables for a terminal or a file: aligned columns, nothing but spaces and one rule."""

import math
import re
from collections.abc import Sequence

_GAP = "  "


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """A table of texts. Columns whose every cell looks like a number are set flush right.

    Returns lines joined by newlines, without trailing spaces; headers alone when there are no rows.
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    right = [bool(rows) and all(map(_is_numeric, column)) for column in zip(*rows, strict=True)]
    right += [False] * (len(headers) - len(right))
    lines = [headers, ["-" * width for width in widths], *rows]
    return "\n".join(_line(line, widths, right, indent) for line in lines)


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
