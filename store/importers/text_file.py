"""Reading a stranger's text file: whole, within a limit, and only if it is text."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError

MAX_FILE_BYTES = 32 * 2**20
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file's text and the SHA-256 of its bytes."""

    path: Path
    text: str
    digest: str

    @property
    def name(self) -> str:
        """Base name: what a source is called; paths are stored nowhere."""
        return self.path.name


def read_text_file(path: Path, *, limit: int = MAX_FILE_BYTES) -> TextFile:
    """Read a UTF-8 text file (a byte order mark is dropped).

    Raises:
        DataError: missing, not a file, unreadable, empty, larger than `limit` bytes, or not text.
    """
    content = _content(path, limit)
    if not content.strip():
        raise DataError(f"{path}: is empty, expected measurements")
    if b"\0" in content:
        raise DataError(f"{path}: is a binary file, expected text")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: is not UTF-8 text (byte {error.start})") from error
    return TextFile(path=path, text=text, digest=hashlib.sha256(content).hexdigest())


def _content(path: Path, limit: int) -> bytes:
    try:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if not path.is_file():  # a pipe or a device may never end
            raise DataError(f"{path}: is not a file")
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(content) > limit:
        raise DataError(f"{path}: is larger than {limit / _MIB:g} MiB, the limit for one file; split it")
    return content
