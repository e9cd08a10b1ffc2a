"""What all pages are made of: the document with its policy and style, tiles, facts, tables, pictures."""

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping

from kernelcast.runtime.views.markup import Markup, element, number, raw
from kernelcast.runtime.views.stylesheet import STYLE

SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    const key = (row) => row.cells[column].querySelector("data")?.value ?? row.cells[column].textContent;
    button.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
      }));
    });
  });
}
"""
"""Script of tables of class `sortable`: a heading sorts by its column; again, in reverse. Cells without a figure come
last either way."""


def document(title: str, *body: str, script: str = "") -> str:
    """A whole HTML file that loads nothing: no network, no scripts but `script`, which its policy names by digest."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
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
        element("style", raw(STYLE)),
    )
    return "<!doctype html>\n" + element("html", head, element("body", *body), lang="en") + "\n"


def section(title: str, *content: str) -> Markup:
    """A section under a heading."""
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


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """What colours and shapes mean: (class of the style sheet, text) each."""
    listed = (element("li", element("span", class_=f"key {style}"), " ", text) for style, text in entries)
    return element("ul", *listed, class_="legend")


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
