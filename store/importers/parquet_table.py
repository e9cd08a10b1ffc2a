"""Parquet files as rows of named texts with row numbers, like a CSV table (extra `parquet`)."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store.importers.csv_table import CsvRow
from kernelcast.store.importers.text_file import read_content

_LFS_POINTER = b"version https://git-lfs"
_MOST_ROWS = 2_000_000
_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """A Parquet file: its columns and the SHA-256 of its bytes."""

    path: Path
    columns: tuple[str, ...]
    digest: str
    _file: Any = field(repr=False)

    @property
    def name(self) -> str:
        """Base name, the name of the source; paths are not stored."""
        return self.path.name

    def missing(self, columns: Sequence[str]) -> str:
        """The first of `columns` that the file lacks, or empty."""
        return next((name for name in columns if name not in self.columns), "")

    def rows(self, columns: Sequence[str] = ()) -> Iterator[CsvRow]:
        """Every row with its number from 1 and its non-empty cells as texts, of `columns` or of all columns.

        Raises:
            DataError: a part of the file cannot be read.
        """
        names = [name for name in columns or self.columns if name in self.columns]
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=names):
                for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    number += 1
                    yield CsvRow(
                        line=number,
                        cells={
                            name: str(value).strip()
                            for name, value in zip(names, values, strict=True)
                            if value is not None and value != ""
                        },
                        columns=self.columns,
                    )
        except _errors() as error:
            raise DataError(f"{self.path}: row {number + 1} cannot be read ({error!s:.100})") from error


def read_parquet(path: Path) -> ParquetTable:
    """Open a Parquet file.

    Raises:
        DataError: missing, not a file, unreadable, too large, without rows, or not a Parquet file.
        UsageError: pyarrow is not installed.
    """
    try:
        from pyarrow import BufferReader, parquet
    except ImportError as error:
        raise UsageError("pyarrow is not installed: pip install 'kernelcast[parquet]'") from error
    content = read_content(path)
    if content.startswith(_LFS_POINTER):
        raise DataError(f"{path}: is a pointer of Git LFS, expected a Parquet file (git lfs pull)")
    try:
        file = parquet.ParquetFile(BufferReader(content))
        columns, rows = tuple(file.schema_arrow.names), file.metadata.num_rows
    except _errors() as error:
        raise DataError(f"{path}: is not a Parquet file ({error!s:.100})") from error
    if not rows:
        raise DataError(f"{path}: is empty, expected measurements")
    if rows > _MOST_ROWS:
        raise DataError(f"{path}: has {rows:,} rows, the limit for one file is {_MOST_ROWS:,}")
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise DataError(f"{path}: two columns are called {twice[0]!r:.40}")
    return ParquetTable(path=path, columns=columns, digest=hashlib.sha256(content).hexdigest(), _file=file)


def _errors() -> tuple[type[Exception], ...]:
    from pyarrow import ArrowException

    return (ArrowException, OSError, ValueError, KeyError)
