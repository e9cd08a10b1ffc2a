"""Large and cut traces: reading them piece by piece, and up to where they break.

A piece ends between two events. Whether a place is between two events is tried, not searched for: a piece that begins
at an event and reads as a list of events ends at one.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_SEARCHED_BYTES = 1 << 20
_LARGEST_HEAD_BYTES = 8 << 20


class NotInPiecesError(Exception):
    """The text cannot be cut into events; it has to be read as a whole to know why."""


def read_pieces(chunks: Iterator[bytes], take: Callable[[bytes], None]) -> bytes:
    """Call `take` with one JSON list of events after another; answers the document with the events that remain.

    `take` raises ValueError where a piece is no such list.

    Raises:
        NotInPiecesError: this is no text of a trace.
    """
    buffer = bytearray()
    while (found := _LIST.search(buffer)) is None:
        chunk = next(chunks, b"")
        if not chunk or len(buffer) > _LARGEST_HEAD_BYTES:
            raise NotInPiecesError
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
    """The text of a document that ends too early, closed after its last whole event; None: it has none."""
    for end in (content.rfind(b"}") + 1, *(end for _, end in _places(content))):
        closed = content[:end] + b"]}"
        try:
            decode(closed)
        except ValueError:
            continue
        return closed
    return None


def _places(text: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Places near the end of a text where an event may end, last first: where the next begins, where it ends."""
    found = list(_BETWEEN.finditer(text, max(0, len(text) - _SEARCHED_BYTES)))
    return ((match.end(), match.start() + 1) for match in reversed(found))
