"""Markdown of the pages that are written from results: tables and shares."""

from collections.abc import Iterator, Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, is_padded: bool = True) -> Iterator[str]:
    """The lines of a table; padded, its columns read as plain text too."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    widths = widths if is_padded else [0] * len(heads)
    for row in [heads, ["-" * max(3, width) for width in widths], *rows]:
        yield f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"


def percent(share: float | None, digits: int = 2, *, is_signed: bool = False) -> str:
    """`1.23 %` or `+1.23 %`; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:{'+' if is_signed else ''}.{digits}f} %"
