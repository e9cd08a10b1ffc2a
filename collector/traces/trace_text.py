"""The text of a trace file: unpacked within limits, split between events, and repaired where it is not valid JSON."""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.small_file import open_regular

# A minute of a busy GPU is a few hundred MB. Beyond this a file is more likely a gzip bomb than a trace.
MAX_TRACE_BYTES = 2 << 30

# Traces compress by 10 to 50 times. A larger ratio is refused long before memory is full.
_LARGEST_RATIO = 200
_UNSUSPICIOUS_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"


def trace_chunks(
    path: Path, *, max_bytes: int = MAX_TRACE_BYTES, is_partial: bool = False
) -> Iterator[bytes]:
    """The file's content in blocks, unpacked where it is gzip; with `is_partial` up to where unpacking fails.

    Raises:
        DataError: empty, more than `max_bytes`, or an implausible compression ratio.
        OSError, EOFError, zlib.error: the file cannot be read or unpacked.
    """
    read_bytes, packed_bytes = 0, path.stat().st_size
    with open_regular(path) as file:
        is_gzip = file.read(2) == _GZIP
        file.seek(0)
        with gzip.open(file) if is_gzip else file as unpacked:
            # `read` discards unpacked data when unpacking fails.
            read = unpacked.read1 if is_partial and isinstance(unpacked, gzip.GzipFile) else unpacked.read
            while True:
                try:
                    chunk = read(_CHUNK_BYTES)
                except (EOFError, zlib.error, gzip.BadGzipFile):
                    if not is_partial:
                        raise
                    return
                if not chunk:
                    break
                read_bytes += len(chunk)
                if read_bytes > max_bytes:
                    raise DataError(
                        f"{path}: more than {max_bytes} bytes of JSON, expected at most that many"
                    )
                if is_gzip and read_bytes > max(_UNSUSPICIOUS_BYTES, _LARGEST_RATIO * packed_bytes):
                    raise DataError(
                        f"{path}: unpacks to more than {_LARGEST_RATIO} times its size, expected a trace"
                    )
                yield chunk
    if not read_bytes:
        raise DataError(f"{path}: empty, expected a Kineto trace")


# A part of a trace ends between two events. Candidate positions are tried rather than parsed: a part that starts at an
# event and decodes as a list of events also ends at one.
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


_BOM = b"\xef\xbb\xbf"
# A JSON string, or a number that JSON lacks. Everything between two matches stays unchanged.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_ESCAPE_PAIR = re.compile(rb"\\.", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_SUSPECT = re.compile(rb"[\x00-\x1f\\]")


def repaired(content: bytes) -> tuple[bytes, Counter[str]]:
    """The text with all invalid JSON replaced, and the number of repairs of each kind."""
    found: Counter[str] = Counter()
    if content.startswith(_BOM):
        content = content[len(_BOM) :]
        found["byte order mark"] += 1
    try:
        content.decode()
    except UnicodeDecodeError:
        text = content.decode(errors="replace")
        found["byte that is not UTF-8"] += text.count("\ufffd") - content.count("\ufffd".encode())
        content = text.encode()

    def token(match: re.Match[bytes]) -> bytes:
        text = match.group()
        if text[:1] != b'"':
            found["number that JSON does not have (NaN, Infinity)"] += 1
            return b"null"
        return _text(text, found) if _SUSPECT.search(text) else text

    return _TOKEN.sub(token, content), found


def _text(text: bytes, found: Counter[str]) -> bytes:
    def escape(match: re.Match[bytes]) -> bytes:
        pair = match.group()
        if pair != b"\\u" and not _BAD_ESCAPE.match(pair):
            return pair
        if pair == b"\\u" and not _BAD_ESCAPE.match(text, match.start()):
            return pair
        found["backslash that escapes nothing"] += 1
        return b"\\\\" + pair[1:]

    def lone(match: re.Match[bytes]) -> bytes:
        if match[2]:
            return match.group()
        found["half of a surrogate pair"] += 1
        return match[1] + b"\\ufffd"

    if SURROGATE.search(text):
        text = _LONE.sub(lone, text)

    def control(match: re.Match[bytes]) -> bytes:
        found["control character in a text"] += 1
        return b"\\u%04x" % match.group()[0]

    return _CONTROL.sub(control, _ESCAPE_PAIR.sub(escape, text))
