"""Malformed lines: gathered one by one, or the first one an error."""

from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime.errors import DataError

_LONGEST_TEXT = 200


class Malformed(ValueError):
    """What is wrong with a line; whoever reads the file adds where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One malformed line; `line` counts from 1."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Problems:
    """Malformed lines in the order they were met."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.found: list[Problem] = []

    def add(self, path: Path, line: int, text: object) -> None:
        """Remember a malformed line.

        Raises:
            DataError: instead, where lines must not be malformed (`strict`).
        """
        one_line = " ".join(str(text).split())
        if len(one_line) > _LONGEST_TEXT:
            one_line = one_line[: _LONGEST_TEXT - 1] + "…"
        problem = Problem(path=path, line=line, text=one_line)
        if self._strict:
            raise DataError(f"{problem}; nothing was imported")
        self.found.append(problem)
