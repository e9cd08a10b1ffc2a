"""The parts of every page: escaped elements, the document with its policy and style, tiles, tables, pictures."""

import base64
import hashlib
import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kernelcast.runtime.errors import one_line
from kernelcast.runtime.views.formatting import cell_text, heading, shortened_apart

_ZOOMS = (1, 2, 4, 8)
_VOID = {"rect", "path", "line", "use", "meta", "img", "input"}
_LONGEST = 80  # characters of a name in a table, so that the numbers next to it stay in sight


_MOST_ROWS = 96
Stage = TypeVar("Stage")


class Markup(str):
    """A text that is HTML or SVG; only `element`, `joined` and `raw` make one."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """A text as markup. Line breaks, control and direction characters are shown as escapes."""
    return text if isinstance(text, Markup) else Markup(html.escape(one_line(text)))


def element(tag: str, *content: str, **attributes: str | float) -> Markup:
    """An element; `class_` is the attribute class, other underscores are hyphens."""
    names = {"class_": "class", "viewBox": "viewBox"}
    listed = "".join(
        f' {names.get(name, name.replace("_", "-"))}="{_value(value)}"' for name, value in attributes.items()
    )
    if not content and tag in _VOID:
        return Markup(f"<{tag}{listed}/>")
    return Markup(f"<{tag}{listed}>{joined(content)}</{tag}>")


def joined(parts: Iterable[str], separator: str = "") -> Markup:
    return Markup(separator.join(escaped(part) for part in parts))


def raw(text: str) -> Markup:
    """A constant of this code that is markup already. Never for text from users or files."""
    return Markup(text)


def number(value: float) -> str:
    """A coordinate: two decimals, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _value(value: str | float) -> str:
    return number(value) if isinstance(value, int | float) else escaped(value)


@cache
def asset_text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def document(title: str, *body: str, sorts: bool = False) -> str:
    """An HTML file that loads nothing and forbids scripts, but the one that sorts tables of class "sortable"."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    if sorts:
        script = asset_text("sort.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        body = (*body, element("script", raw(script)))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", raw(asset_text("colours.css") + asset_text("page.css"))),
    )
    return "<!doctype html>\n" + element("html", head, element("body", *body), lang="en") + "\n"


def section(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content)


def bullets(*items: str) -> Markup:
    return element("ul", *(element("li", item) for item in items))


def tile(name: str, value: str, note: str = "") -> Markup:
    """One headline figure; tiles stand in a `<dl class="tiles">`."""
    notes = [element("dd", note, class_="note")] if note else []
    return element("div", element("dt", name), element("dd", value), *notes)


def facts(values: Mapping[str, str]) -> Markup:
    """A list of names, each with a text."""
    pairs = (part for name, text in values.items() for part in (element("dt", name), element("dd", text)))
    return element("dl", *pairs, class_="facts")


def details(summary: str, *content: str) -> Markup:
    """Content that is folded until the reader opens it."""
    return element("details", element("summary", summary), *content)


def region(label: str, content: str) -> Markup:
    """Content that may be wider than the page: it scrolls by itself, with the keyboard too."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def zoomed(name: str, label: str, content: str) -> Markup:
    """A region with a picture that can be enlarged, without a script; `name` is unique on the page."""
    choices = (
        element("label", element("input", type="radio", name=f"zoom-{name}", value=factor,
                                 **({"checked": "checked"} if factor == _ZOOMS[0] else {})), f"{factor} ×")
        for factor in _ZOOMS
    )  # fmt: skip
    return joined(
        [element("fieldset", element("legend", "zoom"), *choices, class_="zoom"), region(label, content)]
    )


def table(
    headers: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    caption: str,
    text_columns: Collection[int] = (0,),
    class_: str = "",
) -> Markup:
    """A table; `text_columns` are set flush left, the others, which hold numbers, flush right."""

    def cells(tag: str, values: Iterable[str], **attributes: str) -> Markup:
        return element(
            "tr",
            *(
                element(tag, value, **({} if index in text_columns else {"class_": "number"}), **attributes)
                for index, value in enumerate(values)
            ),
        )

    head = element("thead", cells("th", headers, scope="col"))
    body = element("tbody", *(cells("td", row) for row in rows))
    classes = {"class_": class_} if class_ else {}
    return region(caption, element("table", element("caption", caption), head, body, **classes))


def rows_table(rows: Sequence[Mapping[str, Any]], *, caption: str, class_: str = "") -> Markup:
    """A table of one row or more with the same columns, which are named and written as `cell_text` does."""
    texts = {place for place, name in enumerate(rows[0]) if any(isinstance(row[name], str) for row in rows)}
    columns = (_cells(name, [row[name] for row in rows]) for name in rows[0])
    return table(
        map(heading, rows[0]), zip(*columns, strict=True), caption=caption, text_columns=texts, class_=class_
    )


def _cells(name: str, values: Sequence[Any]) -> list[str]:
    """The cells of a column; long texts are cut, with the whole text as a title."""
    texts = [value for value in values if isinstance(value, str) and not isinstance(value, Markup)]
    short = dict(zip(texts, shortened_apart(texts, _LONGEST), strict=True))

    def cell(value: Any) -> str:
        if not isinstance(value, str):
            return element("data", cell_text(name, value), value="" if value is None else str(value))
        cut = short.get(value, value)
        return value if cut == value else element("span", cut, title=value)

    return [cell(value) for value in values]


def rectangles(
    places: Iterable[tuple[float, float]], y: float, height: float, style: str, title: str = ""
) -> Markup:
    """Rectangles (left, width) of a row as one path, with a thin gap after each wide one; all have the one title."""
    moves = []
    for left, width in places:
        drawn = max(0.15, width - (0.5 if width > 2 else 0.0))
        moves.append(f"M{number(left)} {number(y)}h{number(drawn)}v{number(height)}h{number(-drawn)}z")
    titles = [element("title", title)] if title else []
    return element("path", *titles, d=raw("".join(moves)), class_=style)


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """A legend of (class of the style sheet, text)."""
    listed = (element("li", element("span", class_=f"key {style}"), " ", text) for style, text in entries)
    return element("ul", *listed, class_="legend")


def drawn_stages(stages: Sequence[Stage], most: int = _MOST_ROWS) -> tuple[Sequence[Stage], float]:
    """The stages that a picture has rows for, `most` of them, half from either end, and the height of a row."""
    if len(stages) > most:
        stages = (*stages[: most // 2], *stages[-most // 2 :])
    return stages, 34.0 if len(stages) <= 16 else 22.0 if len(stages) <= 40 else 14.0


def picture(name: str, title: str, description: str, *content: str, width: float, height: float) -> Markup:
    """An SVG with a title and a description for screen readers; `name` is unique on the page."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *content,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
