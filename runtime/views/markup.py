"""HTML and SVG built from elements: every text is escaped unless it is markup already."""

import html
from collections.abc import Iterable

from kernelcast.runtime.errors import one_line


class Markup(str):
    """A text that is HTML or SVG; only `element`, `joined` and `raw` make one."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """A text as markup. Line breaks, control and direction characters are shown as escapes."""
    return text if isinstance(text, Markup) else Markup(html.escape(one_line(text)))


def element(tag: str, *content: str, **attributes: str | float) -> Markup:
    """An element; `class_` is the attribute class, other underscores are hyphens."""
    listed = "".join(f' {_attribute(name)}="{_value(value)}"' for name, value in attributes.items())
    if not content and tag in _VOID:
        return Markup(f"<{tag}{listed}/>")
    return Markup(f"<{tag}{listed}>{joined(content)}</{tag}>")


def joined(parts: Iterable[str], separator: str = "") -> Markup:
    """Parts one after the other."""
    return Markup(separator.join(escaped(part) for part in parts))


def raw(text: str) -> Markup:
    """A text written in this code that is markup. Never for text from users or files."""
    return Markup(text)


def number(value: float) -> str:
    """A coordinate: two decimals, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


_VOID = {"rect", "path", "line", "use", "meta"}


def _attribute(name: str) -> str:
    return {"class_": "class", "viewBox": "viewBox"}.get(name, name.replace("_", "-"))


def _value(value: str | float) -> str:
    return number(value) if isinstance(value, int | float) else escaped(value)
