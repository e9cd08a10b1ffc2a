"""Text files within a size limit, and their rows that are not imported."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.small_file import open_regular

MAX_FILE_BYTES = 32 * 2**20
_MIB = 2**20
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file's text and the SHA-256 of its bytes."""

    path: Path
    text: str
    digest: str

    @property
    def name(self) -> str:
        """Base name, the name of the source; paths are not stored."""
        return self.path.name


def read_text_file(path: Path, *, limit: int = MAX_FILE_BYTES) -> TextFile:
    """Read a UTF-8 text file (a byte order mark is dropped).

    Raises:
        DataError: missing, not a file, unreadable, empty, larger than `limit` bytes, or not text.
    """
    content = read_content(path, limit)
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


def read_content(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """All bytes of a regular file.

    Raises:
        DataError: missing, not a file, unreadable, or larger than `limit` bytes.
    """
    try:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if not path.is_file():  # a pipe or a device may never end
            raise DataError(f"{path}: is not a file")
        with open_regular(path) as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(content) > limit:
        raise DataError(f"{path}: is larger than {limit / _MIB:g} MiB, the limit for one file; split it")
    return content


class Malformed(ValueError):
    """A malformed line; the reader adds file and line number."""


class LeftOut(Exception):
    """A valid row that is not imported; the message completes "3 rows …", as in "of nvfp4: …"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One malformed line; `line` counts from 1."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Skipped:
    """Rows that are not imported: malformed lines in order, and counts of others by reason."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.problems: list[Problem] = []
        self.left_out: Counter[str] = Counter()

    def malformed(self, path: Path, line: int, text: object) -> None:
        """Record a malformed line.

        Raises:
            DataError: if `strict`.
        """
        one_line = " ".join(str(text).split())
        if len(one_line) > _LONGEST_TEXT:
            one_line = one_line[: _LONGEST_TEXT - 1] + "…"
        problem = Problem(path=path, line=line, text=one_line)
        if self._strict:
            raise DataError(f"{problem}; nothing was imported")
        self.problems.append(problem)

    @contextmanager
    def row(self, path: Path, line: int) -> Iterator[None]:
        """Skip a row if the block raises `Malformed` or `LeftOut`.

        Raises:
            DataError: as `malformed`.
        """
        try:
            yield
        except LeftOut as error:
            self.left_out[str(error)] += 1
        except Malformed as error:
            self.malformed(path, line, error)
