"""The head of a batch script: `#KERNELCAST` and `#SBATCH` lines."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, UsageError, shown
from kernelcast.runtime.frameworks.slurm import sbatch_options
from kernelcast.runtime.small_file import open_regular
from kernelcast.walltime.settings import Given, give

MARK = "#KERNELCAST"
MAX_HEAD_BYTES = 1 << 20
_LIKE_MARK = re.compile(r"# ?KERNELCAST\s+(?:off\b|\w+=)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """The fields in the comments before a script's first command.

    `off` after `#KERNELCAST off`: the user wants no prediction. `slurm_options` are those that decide how many
    nodes and GPUs the job gets, by their long names.
    """

    given: Mapping[str, Given]
    slurm_options: Mapping[str, str]
    off: bool
    warnings: tuple[str, ...]
    text: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str, *, name: str, folder: Path) -> Self:
        """Read the comments of a script; `name` is for messages, relative paths are relative to `folder`.

        Raises:
            UsageError: a `#KERNELCAST` line is malformed, or gives a field twice; names script and line.
        """
        given: dict[str, Given] = {}
        slurm_options: dict[str, str] = {}
        warnings: list[str] = []
        off = False
        for number, line, is_head in _comments(text):
            words = line.split(maxsplit=1)
            where = f"{name} line {number}"
            if words[0] == "#SBATCH" and is_head:
                slurm_options |= sbatch_options(line)
            if words[0] != MARK:
                if _LIKE_MARK.match(line):
                    warnings.append(f"{where}: {shown(line)} is not read, expected {MARK} in upper case")
                continue
            if not is_head:
                warnings.append(f"{where}: {MARK} after the first command is not read (as with #SBATCH)")
                continue
            for word in _words(line, where):
                if word == "off":
                    off = True
                    continue
                key, equals, value = word.partition("=")
                if not equals:
                    raise UsageError(f"{where}: found {shown(word)}, expected field=value or off")
                given = give([(key, value)], origin=where, folder=folder, earlier=given)
        return cls(
            given=MappingProxyType(given),
            slurm_options=MappingProxyType(slurm_options),
            off=off,
            warnings=tuple(warnings),
            text=text,
            name=name,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the script at `path`; relative paths in it are relative to its folder.

        Raises:
            DataError: the file is missing or unreadable.
            UsageError: as in `parse`.
        """
        try:
            with open_regular(path) as stream:
                content = stream.read(MAX_HEAD_BYTES)
        except FileNotFoundError:
            raise DataError(f"batch script {path}: no such file") from None
        except OSError as error:
            raise DataError(f"batch script {path}: cannot be read ({error.strerror})") from error
        return cls.parse(decoded(content), name=str(path), folder=path.absolute().parent)


def decoded(content: bytes) -> str:
    """A script's text; bytes that are not UTF-8 are preserved, since file names may hold any bytes."""
    return content.decode("utf-8", errors="surrogateescape")


def _comments(text: str) -> Iterator[tuple[int, str, bool]]:
    """Lines that begin with #: line number, line, and whether it precedes the first command."""
    is_head = True
    # Not splitlines(), for which a form feed or U+2028 inside a comment would begin a new line.
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if line.startswith("#"):
            yield number, stripped, is_head
        elif stripped and not stripped.startswith("#"):
            is_head = False


def _words(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line[len(MARK) :], comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {str(error).lower()} in {shown(line)}, expected field=value …") from error
