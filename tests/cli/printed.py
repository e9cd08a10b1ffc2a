"""What commands print."""

import re

_NEXT = re.compile(r"\n*\nnext:\n((?:  [^\n]*\n)+)\Z")


def without_next(text: str) -> str:
    """Without the last lines, which say what to do next."""
    return _NEXT.sub("\n", text)


def next_commands(text: str) -> list[str]:
    """The commands of the last lines, each whole, without what it does."""
    found = _NEXT.search(text)
    assert found is not None, text
    lines = [line.strip().split("  # ")[0] for line in found[1].splitlines()]
    return [line for line in lines if not line.startswith("#")]
