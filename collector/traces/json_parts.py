"""Large and truncated traces: decoding them in parts, and up to their last whole event.

A part ends between two events. Candidate positions are tried rather than parsed: a part that starts at an event and
decodes as a list of events also ends at one.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_SEARCHED_BYTES = 1 << 20
_LARGEST_HEAD_BYTES = 8 << 20


class NotInPartsError(Exception):
    """The text cannot be split into events; reading it as a whole gives the reason."""


def read_parts(chunks: Iterator[bytes], take: Callable[[bytes], None]) -> bytes:
    """Call `take` with one JSON list of events after another; returns the document with the remaining events.

    `take` must raise ValueError for a part that is no such list.

    Raises:
        NotInPartsError: this is no trace.
    """
    buffer = bytearray()
    while (found := _LIST.search(buffer)) is None:
        chunk = next(chunks, b"")
        if not chunk or len(buffer) > _LARGEST_HEAD_BYTES:
            raise NotInPartsError
        buffer += chunk
    head = bytes(buffer[: found.end()])
    del buffer[: found.end()]
    for chunk in chunks:
        buffer += chunk
        for after, end in _places(buffer):
            try:
                take(b"[" + bytes(buffer[:end]) + b"]")
            except ValueError:  # inside an event, or after the end of the list
                continue
            del buffer[:after]
            break
    return head + bytes(buffer)


def closed_document(content: bytes, decode: Callable[[bytes], Any]) -> bytes | None:
    """A truncated document, closed after its last whole event; None where it has none."""
    for end in (content.rfind(b"}") + 1, *(end for _, end in _places(content))):
        closed = content[:end] + b"]}"
        try:
            decode(closed)
        except ValueError:
            continue
        return closed
    return None


def _places(text: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Positions near the end of a text where an event may end, last first: start of the next event, end of this one."""
    found = list(_BETWEEN.finditer(text, max(0, len(text) - _SEARCHED_BYTES)))
    return ((match.end(), match.start() + 1) for match in reversed(found))
