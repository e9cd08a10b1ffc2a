"""TOML that somebody wrote: parsed in a time that grows with its size alone."""

import re
import tomllib
from typing import Any

MOST_PARTS = 16
"""Of one dotted key; tomllib's time grows with their square (400 KB of one key take minutes)."""

_PART = r"""(?:[\w\-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}", re.ASCII)


def parse_toml(content: bytes) -> dict[str, Any]:
    """The fields of a TOML document.

    Raises:
        ValueError: it is not UTF-8, not TOML, or has a key of more than 16 parts (or a text that looks like one).
        RecursionError: it is nested too deeply.
    """
    text = content.decode()
    found = _LONG_KEY.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key of more than {MOST_PARTS} parts (at line {line})")
    return tomllib.loads(text)
