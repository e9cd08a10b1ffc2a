"""The -journal file of a database: an interrupted transaction, which SQLite undoes when the database is written."""

import os
from pathlib import Path

from kernelcast.runtime.errors import DataError

# https://sqlite.org/fileformat2.html, section 3: a super-journal's name stands at the end, before the same eight bytes.
_MAGIC = bytes.fromhex("d9d505f920a163d7")


def check_journal(path: Path, target: Path, *, read_only: bool) -> None:
    """Refuse a database whose journal cannot be undone, or not safely: for reading, or since it names another file.

    SQLite deletes a super-journal that a journal names, whatever that file is. kernelcast never writes such a name.
    `path` is the database's name in messages, `target` where links lead.

    Raises:
        DataError: names the journal. Both files stay as they are.
    """
    journal = target.with_name(target.name + "-journal")
    try:
        with journal.open("rb") as file:
            is_finished = file.read(1) in (b"", b"\0")
            file.seek(-min(len(_MAGIC), file.seek(0, os.SEEK_END)), os.SEEK_END)
            names_another = file.read() == _MAGIC
    except FileNotFoundError:
        return
    if is_finished:  # and kept
        return
    if names_another:
        raise DataError(
            f"{path}: its journal {journal.name} names another file, which SQLite would delete, "
            "expected a transaction of this database alone"
        )
    if read_only:
        raise DataError(
            f"{path}: a transaction was interrupted ({journal.name}), expected none; opening it for writing undoes it"
        )
