"""The bytes of a trace file, plain or gzip, with limits on the unpacked size."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.small_file import open_regular

# A minute of a busy GPU is a few hundred MB. Beyond this a file is more likely a gzip bomb than a trace.
MAX_TRACE_BYTES = 2 << 30

# Traces compress by 10 to 50 times. A larger ratio is refused long before memory is full.
_LARGEST_RATIO = 200
_UNSUSPICIOUS_BYTES = 64 << 20
_CHUNK_BYTES = 16 << 20
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
