"""SQLite's errors as one-line messages."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelcast.runtime.errors import DataError, KernelcastError, one_line

NO_RECORD = (
    KernelcastError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
"""Exceptions of making a record from a damaged row."""

# By the error's name without its extension (SQLITE_IOERR_WRITE begins with SQLITE_IOERR).
_EXPLANATIONS = {
    "SQLITE_FULL": "the disk is full; nothing of this change was stored",
    "SQLITE_IOERR": "reading or writing failed; nothing of this change was stored",
    "SQLITE_READONLY": "is opened read-only or its file is write-protected; nothing was stored",
    "SQLITE_BUSY": "another process has kept it locked for too long; nothing of this change was stored",
    "SQLITE_NOTADB": "is not a SQLite database",
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_CANTOPEN": "cannot be opened",
    "SQLITE_CONSTRAINT_FOREIGNKEY": "a row names something that is not in the database; nothing was stored",
}


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn SQLite's errors inside the block into a DataError that names the file, also for values that it cannot hold.

    KeyboardInterrupt where Ctrl-C ended a statement: a progress handler cannot raise it.
    """
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", None) == "SQLITE_INTERRUPT":
            raise KeyboardInterrupt from error
        raise DataError(f"{path}: {explanation(error)}") from error
    except (ValueError, OverflowError) as error:
        # JSON that does not parse, text that is not Unicode, an integer of more than 64 bits.
        raise DataError(
            f"{path}: a value can be neither stored nor read ({one_line(str(error))[:200]})"
        ) from error
    except RecursionError as error:
        raise DataError(f"{path}: a value is nested too deeply") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """As `reported`, for blocks that make records of rows: a row without a valid record is a DataError too."""
    try:
        with reported(path):
            yield
    except DataError:
        raise
    except NO_RECORD as error:
        reason = one_line(str(error))[:200] or type(error).__name__
        raise DataError(f"{path}: a row is damaged ({reason}); kernelcast db check lists them") from error


def explanation(error: sqlite3.Error) -> str:
    """What went wrong, in one line."""
    name = getattr(error, "sqlite_errorname", None) or ""
    for prefix, words in _EXPLANATIONS.items():
        if name.startswith(prefix):
            return one_line(f"{words} ({' '.join(str(error).split())})")
    return one_line(" ".join(str(error).split()))
