"""Write docs/schema.md, every table and view with its columns, and docs/schema.svg, tables and what they refer to
(`make docs`).
"""

from collections.abc import Mapping
from pathlib import Path

from kernelcast.docs.markdown import table
from kernelcast.runtime.views.page import Markup, element
from kernelcast.store.schema import documented, empty_database

DOCS = Path(__file__).resolve().parent
PAGE, PICTURE = DOCS / "schema.md", DOCS / "schema.svg"

_BEGIN = """\
# Schema of a database

Every table and view, from the comments of `schema.sql`, which are inside every database too; written by `make docs`.
Questions with answers are in [sql.md](sql.md), what merging and migrations guarantee in [sharing.md](sharing.md). Ids
are digests of what a row means; columns named `number` are row numbers that link rows of one file. Units are at the end
of names.

![Tables; an arrow leads to the table that rows refer to](schema.svg)

"""

# Pixels.
_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 156.0, 30.0, 10.0, 62.0, 6.0
_STYLE = """
.box { fill: #eef2f7; stroke: #5b6b7f } .name { font: 13px ui-monospace, monospace; fill: #16202c }
.arrow { fill: none; stroke: #5b6b7f; stroke-width: 1.2 } .head { fill: #5b6b7f }
@media (prefers-color-scheme: dark) {
  .box { fill: #22303f; stroke: #8ba0b8 } .name { fill: #e7edf4 } .arrow { stroke: #8ba0b8 } .head { fill: #8ba0b8 }
}
"""


def page() -> str:
    """The whole page."""
    parents = references()
    tables = "".join(_section(name, parents[name]) for name in documented() if name in parents)
    views = "".join(_section(name, ()) for name in documented() if name not in parents)
    return f"{_BEGIN}## Tables\n\n{tables}## Views\n\n{views}".rstrip() + "\n"


def references() -> Mapping[str, tuple[str, ...]]:
    """Every table with those that its rows refer to, in the order of schema.sql."""
    with empty_database() as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: connection.execute(f"PRAGMA foreign_key_list({name})").fetchall() for name in names}
    return {
        name: tuple(dict.fromkeys(row[2] for row in found[name]))
        for name in names
        if not name.startswith("sqlite_")
    }


def _section(name: str, parents: tuple[str, ...]) -> str:
    found = documented()[name]
    links = ", ".join(f"[{one}](#{one})" for one in parents)
    refers = f" Refers to {links}." if links else ""
    rows = [(f"`{column}`", text.replace("|", "\\|")) for column, text in found.columns.items()]
    columns = "\n".join(["", "", *table(("column", "what it holds"), rows, is_padded=False)]) if rows else ""
    return f"### {name}\n\n{found.comment}{refers}{columns}\n\n"


def picture() -> str:
    """Tables in rows below those that they refer to."""
    parents = references()
    depth: dict[str, int] = {}
    while len(depth) < len(parents):
        for name, above in parents.items():
            if set(above) <= set(depth):
                depth.setdefault(name, 1 + max((depth[one] for one in above), default=-1))
    # Tables that refer to nothing stand just above the first that refers to them, or apart at the end.
    end = max(depth.values()) + 1
    for name in (name for name in parents if not parents[name]):
        below = [depth[other] for other, above in parents.items() if name in above]
        depth[name] = min(below) - 1 if below else end
    rows = [[name for name in parents if depth[name] == level] for level in sorted(set(depth.values()))]
    at: dict[str, tuple[float, float]] = {}
    widest = max(map(len, rows)) * (_WIDTH + _ACROSS) - _ACROSS
    for level, row in enumerate(rows):
        # Below the middle of its parents, so that arrows are short.
        def middle(name: str) -> float:
            known = [at[one][0] for one in parents[name] if one in at]
            return sum(known) / len(known) if known else 0.0

        row.sort(key=middle)
        left = _MARGIN + (widest - len(row) * (_WIDTH + _ACROSS) + _ACROSS) / 2
        for index, name in enumerate(row):
            at[name] = left + index * (_WIDTH + _ACROSS), _MARGIN + level * (_HEIGHT + _DOWN)
    arrows = [_arrow(at[name], at[one]) for name, above in parents.items() for one in above]
    boxes = [box for name in at for box in _box(name, *at[name])]
    width, height = widest + 2 * _MARGIN, len(rows) * (_HEIGHT + _DOWN) - _DOWN + 2 * _MARGIN
    head = element(
        "marker",
        element("path", d="M0 0L8 4L0 8z", class_="head"),
        id="head", viewBox="0 0 8 8", refX=8, refY=4, markerWidth=8, markerHeight=8, orient="auto",
    )  # fmt: skip
    text = element(
        "svg",
        element("title", "Tables of a kernelcast database"),
        element("style", Markup(_STYLE)),
        element("defs", head),
        *arrows,
        *boxes,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}", width=width, height=height, role="img",
    )  # fmt: skip
    return text + "\n"


def _box(name: str, x: float, y: float) -> tuple[Markup, Markup]:
    return (
        element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=4, class_="box"),
        element("text", name, x=x + _WIDTH / 2, y=y + _HEIGHT / 2 + 4.5, text_anchor="middle", class_="name"),
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """From the top of a table to the bottom of the one that it refers to."""
    x1, y1, x2, y2 = start[0] + _WIDTH / 2, start[1], end[0] + _WIDTH / 2, end[1] + _HEIGHT
    bend = (y1 - y2) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {y1 - bend:g} {x2:g} {y2 + bend:g} {x2:g} {y2:g}"
    return element("path", d=path, class_="arrow", marker_end="url(#head)")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"{PAGE.name}: {len(documented())} tables and views")
