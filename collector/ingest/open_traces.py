"""Traces of one run as a database, given as a database, as trace files, or as a folder with a trace per rank."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelcast.collector.ingest.run import ingest_traces
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.small_file import open_regular
from kernelcast.store import Database

_SQLITE = b"SQLite format 3\x00"
_ENDINGS = ("*.json", "*.json.gz")


@contextmanager
def opened_traces(
    paths: Sequence[Path],
    *,
    is_partial: bool = False,
    gpus_per_node: int = 0,
    notes: list[str] | None = None,
) -> Iterator[Database]:
    """Yield the given database, or a temporary one with the given traces (`ingest_traces`).

    `notes` gets what was repaired or left out, with the files' names; a database does not keep that.

    Raises:
        DataError: a database among several files, a folder without traces, or a file that is no trace.
    """
    databases = [path for path in paths if is_database(path)]
    if databases:
        if len(paths) > 1:
            raise DataError(
                f"{databases[0]}: is a database among {len(paths)} files, expected one database, or traces"
            )
        with Database.open(databases[0], read_only=True) as database:
            yield database
        return
    with TemporaryDirectory() as folder:
        database_path = Path(folder, "traces.db")
        done = ingest_traces(
            trace_files(paths), database_path, is_partial=is_partial, gpus_per_node=gpus_per_node
        )
        if notes is not None:
            notes += [f"{one.path.name}: {note}" for one in done for note in one.notes]
        with Database.open(database_path, read_only=True) as database:
            try:
                yield database
            except DataError as error:
                # Name the given files, not the temporary database.
                given = ", ".join(map(str, paths))
                raise DataError(str(error).replace(str(database_path), given)) from error


def is_database(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The traces, with folders replaced by the traces in them."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file, expected a trace or a database")
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for ending in _ENDINGS for file in path.glob(ending))
        if not inside:
            raise DataError(f"{path}: holds no *.json or *.json.gz, expected the traces of a run")
        files += inside
    return files
