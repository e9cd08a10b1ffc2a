"""Files that somebody wrote and that are small: read whole, never more than they may have."""

from pathlib import Path

from kernelcast.runtime.errors import DataError


def read_small_file(path: Path, *, where: str, most_bytes: int) -> bytes:
    """The content of a file; errors begin with `where`.

    Raises:
        DataError: it is missing, cannot be read, or is larger than `most_bytes`.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise DataError(f"{where}: no such file") from error
    except (OSError, ValueError) as error:
        # ValueError: a path with a null byte.
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{where}: cannot be read ({reason})") from error
    if len(content) > most_bytes:
        raise DataError(f"{where}: larger than {most_bytes} bytes")
    return content
