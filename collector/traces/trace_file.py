"""The bytes of a trace file, plain or gzip, with limits on what they may unpack to."""

import gzip
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.small_file import open_regular

# A minute of a busy GPU is a few hundred MB. Beyond this a file is more likely a gzip bomb than a trace.
MAX_TRACE_BYTES = 2 << 30

# Traces pack to a tenth or a fiftieth. What unpacks to much more is noticed long before the limit fills the memory.
_LARGEST_RATIO = 200
_UNSUSPICIOUS_BYTES = 64 << 20
_CHUNK_BYTES = 16 << 20


def trace_bytes(path: Path, *, max_bytes: int = MAX_TRACE_BYTES) -> bytes:
    """The file's content, unpacked where it is gzip.

    Raises:
        DataError: empty, more than `max_bytes`, or packed as no trace is.
        OSError, EOFError, zlib.error: the file cannot be read or unpacked.
    """
    with open_regular(path) as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzip:
            return _checked(path, file.read(max_bytes + 1), max_bytes)
        with gzip.open(file) as unpacked:
            return _unpacked(path, unpacked, path.stat().st_size, max_bytes)


def _unpacked(path: Path, unpacked: gzip.GzipFile, packed_bytes: int, max_bytes: int) -> bytes:
    content = bytearray()
    while chunk := unpacked.read(min(_CHUNK_BYTES, max_bytes + 1 - len(content))):
        content += chunk
        if len(content) > max(_UNSUSPICIOUS_BYTES, _LARGEST_RATIO * packed_bytes):
            raise DataError(f"{path}: unpacks to more than {_LARGEST_RATIO} times its size, expected a trace")
    return _checked(path, bytes(content), max_bytes)


def _checked(path: Path, content: bytes, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise DataError(f"{path}: more than {max_bytes} bytes of JSON, expected at most that many")
    if not content:
        raise DataError(f"{path}: empty, expected a Kineto trace")
    return content
