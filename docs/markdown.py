"""Markdown of the pages that are written from results: tables, shares, and where they stand in a page."""

from collections.abc import Iterator, Sequence
from pathlib import Path


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, is_padded: bool = True) -> Iterator[str]:
    """The lines of a table; padded, its columns read as plain text too."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    widths = widths if is_padded else [0] * len(heads)
    for row in [heads, ["-" * max(3, width) for width in widths], *rows]:
        yield f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"


def percent(share: float | None, digits: int = 2, *, is_signed: bool = False) -> str:
    """`1.23 %` or `+1.23 %`; a dash where it is not known."""
    return "–" if share is None else f"{100 * share:{'+' if is_signed else ''}.{digits}f} %"


def filled(text: str, name: str, content: str) -> str:
    """A page with `content` between its lines `<!-- name -->` and `<!-- end of name -->`.

    Raises:
        SystemExit: the page has no such lines.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"no place for {name}, expected lines {begin.strip()} and {end}")
    line_end = "" if content.endswith("\n") else "\n"
    return f"{before}{begin}{content}{line_end}{end}{after}"


def fill(page: Path, name: str, content: str) -> None:
    """Write `content` between the lines of a page that are marked by `name` (see `filled`)."""
    page.write_text(filled(page.read_text(encoding="utf-8"), name, content), encoding="utf-8")
