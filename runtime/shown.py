"""How a value that was found is shown in an error: short, on one line, whatever it is."""

import os

_LONGEST = 80


def shown(value: object) -> str:
    """`repr` of a value, at most 80 characters; also of numbers too long for Python to print."""
    try:
        return f"{value!r:.{_LONGEST}}"
    except (ValueError, RecursionError):
        # A number above the interpreter's limit of digits, perhaps deep inside; or endless nesting.
        kind = "a number" if isinstance(value, int) else f"a {type(value).__name__}"
        return f"{kind} too long to show"


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as it is, or quoted when it would not stay on one line."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)
