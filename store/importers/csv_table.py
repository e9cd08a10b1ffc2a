"""CSV files as rows of named texts with line numbers, and reading numbers from texts."""

import csv
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice

from kernelcast.runtime.errors import DataError
from kernelcast.store.importers.text_file import Malformed, Skipped, TextFile

MAX_WHOLE = 2**53  # doubles hold all whole numbers up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRow:
    """One row; cells are stripped of blanks, and empty cells are left out.

    Methods raise Malformed if a cell is empty or has another type.
    """

    line: int
    cells: dict[str, str]
    columns: Collection[str] | None = None  # of its table, where it is in one

    def whole(self, name: str) -> int:
        """A whole number from 1."""
        return whole(self.text(name), name)

    def positive(self, name: str) -> float:
        """A number above 0."""
        return positive(self.text(name), name)

    def text(self, name: str) -> str:
        """A cell."""
        try:
            return self.cells[name]
        except KeyError:
            has_column = self.columns is None or name in self.columns
            raise Malformed(f"{name} is empty" if has_column else f"no column {name!r}") from None


def whole(text: str, name: str) -> int:
    """A whole number from 1 to 2^53; `4.0` is one.

    Raises:
        Malformed: something else.
    """
    value = _number(text)
    if value is None or value != int(value) or not 1 <= value <= MAX_WHOLE:
        raise Malformed(f"{name}: found {text!r:.40}, expected a whole number from 1")
    return int(value)


def positive(text: str, name: str) -> float:
    """A number above 0.

    Raises:
        Malformed: something else.
    """
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


class CsvTable:
    """A CSV file with a header: `columns`, then `rows`. Lines before `first_line` are skipped."""

    def __init__(self, file: TextFile, *, first_line: int = 1) -> None:
        self.file = file
        lines = StringIO(file.text, newline="")  # keeps line ends for csv
        self._before = first_line - 1
        self._reader = csv.reader(islice(lines, self._before, None), strict=True)
        try:
            header = next(self._reader, [])
        except csv.Error as error:
            raise DataError(f"{file.path}:{first_line}: is not CSV ({error})") from error
        self.columns = [name.strip() for name in header]

    def require(self, columns: Sequence[str], what: str) -> None:
        """Check the header.

        Raises:
            DataError: one of `columns` is missing, or a name appears twice; `what` is the expected file.
        """
        missing = [name for name in columns if name not in self.columns]
        if missing:
            found = ", ".join(self.columns)
            raise DataError(
                f"{self.file.path}: is not {what}: no column {missing[0]!r}; found {found!r:.120}"
            )
        twice = [name for name in self.columns if self.columns.count(name) > 1]
        if twice:
            raise DataError(f"{self.file.path}: is not {what}: two columns are called {twice[0]!r:.40}")

    def rows(self, skipped: Skipped) -> Iterator[CsvRow]:
        """Every row with a cell per column; other rows are skipped as malformed."""
        while True:
            start = self._reader.line_num + 1
            try:
                cells = next(self._reader, None)
            except csv.Error as error:
                skipped.malformed(self.file.path, self._before + start, error)
                continue
            if cells is None:
                return
            if not any(cell.strip() for cell in cells):
                continue
            line = self._before + start
            if len(cells) != len(self.columns):
                skipped.malformed(
                    self.file.path, line, f"found {len(cells)} cells, expected {len(self.columns)} columns"
                )
                continue
            stripped = ((name, cell.strip()) for name, cell in zip(self.columns, cells, strict=True))
            yield CsvRow(
                line=line, cells={name: cell for name, cell in stripped if cell}, columns=self.columns
            )
