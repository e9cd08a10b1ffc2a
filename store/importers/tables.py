"""Files of measurements: text within a size limit, tables of named cells (CSV, Parquet), and rows that are skipped."""

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, UsageError, system_errors
from kernelcast.runtime.small_file import open_regular

MAX_FILE_BYTES = 32 * 2**20
_MIB = 2**20
_LONGEST_TEXT = 200
_MAX_WHOLE = 2**53  # doubles hold all whole numbers up to this
_LFS_POINTER = b"version https://git-lfs"
_MOST_ROWS = 2_000_000
_ROWS_AT_ONCE = 20_000


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
        """Record a malformed line; if `strict`, a DataError."""
        one_line = " ".join(str(text).split())
        if len(one_line) > _LONGEST_TEXT:
            one_line = one_line[: _LONGEST_TEXT - 1] + "…"
        problem = Problem(path=path, line=line, text=one_line)
        if self._strict:
            raise DataError(f"{problem}; nothing was imported")
        self.problems.append(problem)

    @contextmanager
    def row(self, path: Path, line: int) -> Iterator[None]:
        """Skip a row if the block raises `Malformed` or `LeftOut`; errors as `malformed`."""
        try:
            yield
        except LeftOut as error:
            self.left_out[str(error)] += 1
        except Malformed as error:
            self.malformed(path, line, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file by the SHA-256 of its bytes."""

    path: Path
    digest: str

    @property
    def name(self) -> str:
        """Base name, the name of the source; paths are not stored."""
        return self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile(SourceFile):
    """A file's text."""

    text: str


def read_text_file(path: Path, *, limit: int = MAX_FILE_BYTES) -> TextFile:
    """Read a UTF-8 text file (a byte order mark is dropped).

    DataError where it is missing, not a file, unreadable, empty, larger than `limit` bytes, or not text.
    """
    content = _read_content(path, limit)
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


def _read_content(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    with system_errors(str(path), "cannot be read"):
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if not path.is_file():  # a pipe or a device may never end
            raise DataError(f"{path}: is not a file")
        with open_regular(path) as stream:
            content = stream.read(limit + 1)
    if len(content) > limit:
        raise DataError(f"{path}: is larger than {limit / _MIB:g} MiB, the limit for one file; split it")
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One row as texts by column, without empty cells. Methods raise Malformed for an empty or ill-typed cell."""

    line: int
    cells: dict[str, str]
    columns: Collection[str] | None = None  # of its table, where it is in one

    def text(self, name: str) -> str:
        try:
            return self.cells[name]
        except KeyError:
            has_column = self.columns is None or name in self.columns
            raise Malformed(f"{name} is empty" if has_column else f"no column {name!r}") from None

    def one_of(self, name: str, known: Collection[str]) -> str:
        """A cell that holds one of the `known` texts."""
        if (found := self.text(name)) not in known:
            raise Malformed(f"{name}: found {found!r:.40}, expected one of {', '.join(known)}")
        return found

    def whole(self, name: str) -> int:
        """A whole number from 1."""
        return whole(self.text(name), name)

    def wholes(self, *names: str) -> tuple[int, ...]:
        return tuple(map(self.whole, names))

    def multiple(self, name: str, of: str) -> int:
        """A whole number from 1 that another one divides."""
        if (found := self.whole(name)) % (divisor := self.whole(of)):
            raise Malformed(f"{name}: found {found}, expected a multiple of {of} {divisor}")
        return found

    def positive(self, name: str) -> float:
        """A number above 0."""
        return positive(self.text(name), name)


def whole(text: str, name: str) -> int:
    """A whole number from 1 to 2^53 (`4.0` is one), else Malformed."""
    value = _number(text)
    if value is None or value != int(value) or not 1 <= value <= _MAX_WHOLE:
        raise Malformed(f"{name}: found {text!r:.40}, expected a whole number from 1")
    return int(value)


def positive(text: str, name: str) -> float:
    """A number above 0, else Malformed."""
    value = _number(text)
    if value is None or value <= 0:
        raise Malformed(f"{name}: found {text!r:.40}, expected a number above 0")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(SourceFile):
    """A file with named columns."""

    columns: tuple[str, ...]

    def require(self, columns: Sequence[str], what: str) -> None:
        """Refuse a header without one of `columns`, or with a name twice (DataError); `what` is the expected file."""
        if missing := [name for name in columns if name not in self.columns]:
            found = ", ".join(self.columns)
            raise DataError(f"{self.path}: is not {what}: no column {missing[0]!r}; found {found!r:.120}")
        if twice := [name for name in self.columns if self.columns.count(name) > 1]:
            raise DataError(f"{self.path}: is not {what}: two columns are called {twice[0]!r:.40}")

    def rows(self, skipped: Skipped) -> Iterator[Cells]:
        """Every row with its number; rows without a cell per column are skipped as malformed."""
        raise NotImplementedError

    def _cells(self, line: int, values: Sequence[object]) -> Cells:
        texts = ("" if value is None else str(value).strip() for value in values)
        cells = {name: text for name, text in zip(self.columns, texts, strict=True) if text}
        return Cells(line=line, cells=cells, columns=self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTable(Table):
    """A CSV file with a header; `line` is the line of its header."""

    text: str
    line: int

    @classmethod
    def of(cls, file: TextFile, *, first_line: int = 1) -> "CsvTable":
        """The table of a file, without the lines before `first_line`; DataError where the header is no CSV."""
        table = cls(path=file.path, digest=file.digest, columns=(), text=file.text, line=first_line)
        try:
            header: list[str] = next(table._reader(), [])
        except csv.Error as error:
            raise DataError(f"{file.path}:{first_line}: is not CSV ({error})") from error
        return table.called(*(name.strip() for name in header))

    def called(self, *columns: str) -> "CsvTable":
        return CsvTable(path=self.path, digest=self.digest, columns=columns, text=self.text, line=self.line)

    def rows(self, skipped: Skipped) -> Iterator[Cells]:
        """Every row with the number of its first line."""
        reader = self._reader()
        next(reader)
        while True:
            line = self.line + reader.line_num
            try:
                cells = next(reader, None)
            except csv.Error as error:
                skipped.malformed(self.path, line, error)
                continue
            if cells is None:
                return
            if len(cells) == len(self.columns) and any(cell.strip() for cell in cells):
                yield self._cells(line, cells)
            elif any(cell.strip() for cell in cells):
                found = f"found {len(cells)} cells, expected {len(self.columns)} columns"
                skipped.malformed(self.path, line, found)

    def _reader(self) -> Any:
        lines = StringIO(self.text, newline="")  # keeps line ends for csv
        return csv.reader(islice(lines, self.line - 1, None), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable(Table):
    """A Parquet file (extra `parquet`)."""

    content: bytes

    @classmethod
    def read(cls, path: Path) -> "ParquetTable":
        """Open a Parquet file.

        DataError as `read_text_file`, or where it is no Parquet file; UsageError where pyarrow is not installed.
        """
        content = _read_content(path)
        if content.startswith(_LFS_POINTER):
            raise DataError(f"{path}: is a pointer of Git LFS, expected a Parquet file (git lfs pull)")
        try:
            file = _parquet_file(content)
            columns, rows = tuple(file.schema_arrow.names), file.metadata.num_rows
        except _parquet_errors() as error:
            raise DataError(f"{path}: is not a Parquet file ({error!s:.100})") from error
        if not rows:
            raise DataError(f"{path}: is empty, expected measurements")
        if rows > _MOST_ROWS:
            raise DataError(f"{path}: has {rows:,} rows, the limit for one file is {_MOST_ROWS:,}")
        digest = hashlib.sha256(content).hexdigest()
        table = cls(path=path, digest=digest, columns=columns, content=content)
        table.require((), "a table")
        return table

    def rows(self, skipped: Skipped) -> Iterator[Cells]:
        """Every row with its number from 1; DataError where a part of the file cannot be read."""
        number = 0
        try:
            for batch in _parquet_file(self.content).iter_batches(batch_size=_ROWS_AT_ONCE):
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    number += 1
                    yield self._cells(number, values)
        except _parquet_errors() as error:
            raise DataError(f"{self.path}: row {number + 1} cannot be read ({error!s:.100})") from error


def _parquet_file(content: bytes) -> Any:
    from pyarrow import BufferReader, parquet

    return parquet.ParquetFile(BufferReader(content))


def _parquet_errors() -> tuple[type[Exception], ...]:
    try:
        from pyarrow import ArrowException
    except ImportError as error:
        raise UsageError("pyarrow is not installed: pip install 'kernelcast[parquet]'") from error
    return (ArrowException, OSError, ValueError, KeyError)
