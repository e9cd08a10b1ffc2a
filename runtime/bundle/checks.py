"""What the fields of a manifest and of a stack may hold."""

import re
from datetime import datetime

from kernelcast.runtime.errors import DataError

_HEX = re.compile(r"[0-9a-f]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


def require(holds: bool, where: str, name: str, value: object, expected: str) -> None:
    """Refuse a value.

    Raises:
        DataError: it does not hold; names the field, the value and what was expected.
    """
    if not holds:
        raise DataError(f"{where}: {name} is {value!r:.80}, expected {expected}")


def is_hex(text: str) -> bool:
    """Lower-case hex digits, at least one."""
    return _HEX.fullmatch(text) is not None


def is_word(text: str) -> bool:
    """A name without spaces, such as float32."""
    return _WORD.fullmatch(text) is not None


def is_moment(text: str) -> bool:
    """ISO 8601 with a time zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
