"""Amounts of memory as people write them: `80GB`, `40GiB`; and of days."""

import re

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.views.formatting import three_digits

_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_BYTES_OF = {unit.lower(): size_bytes for unit, size_bytes in _UNITS.items()}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


def parse_size(text: str, *, name: str, least: int = 1) -> int:
    """Bytes of a size with a unit, decimal (GB = 10⁹) or binary (GiB = 2³⁰), in upper or lower case.

    Raises:
        UsageError: it is no size, has no unit, or is less than `least` bytes; the message contains `name`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None and not match[2]:
        units = ", ".join(_UNITS)
        raise UsageError(
            f"{name} is {text!r:.80} without a unit, expected one of {units}, as in {match[1]}GB"
        )
    factor = None if match is None else _BYTES_OF.get(match[2].lower())
    size_bytes = -1 if match is None or factor is None else int(float(match[1]) * factor)
    if size_bytes < least:
        raise UsageError(f"{name} is {text!r:.80}, expected a size such as 80GB or 40GiB")
    return size_bytes


def in_days(days: float) -> str:
    """A number of days without the unit: `1,234.5`, few of them with three digits, `0.125`."""
    return f"{days:,.1f}" if days >= 10 else three_digits(days)
