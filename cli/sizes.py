"""Amounts of memory as people write them: `80GB`, `40GiB`."""

import re

from kernelcast.runtime.errors import UsageError

_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


def parse_size(text: str, *, name: str) -> int:
    """Bytes of a size with a unit, decimal (GB = 10⁹) or binary (GiB = 2³⁰), in upper or lower case.

    Raises:
        UsageError: it is no size, or less than one byte; the message contains `name`.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = None if match is None else _UNITS.get(match[2].lower())
    size_bytes = 0 if match is None or factor is None else int(float(match[1]) * factor)
    if size_bytes < 1:
        raise UsageError(f"{name} is {text!r:.80}, expected a size such as 80GB or 40GiB")
    return size_bytes


def in_gib(size_bytes: float) -> str:
    """A size in GiB, without the unit: `12.3`, small ones with more digits, `0.012`."""
    size_gib = size_bytes / 2**30
    return f"{size_gib:.{1 if size_gib >= 10 else 2 if size_gib >= 1 else 3}f}"
