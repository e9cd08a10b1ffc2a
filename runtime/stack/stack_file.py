"""Stacks as TOML files: read strictly, written in full; those that ship by name."""

import os
from functools import cache
from pathlib import Path

from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import error_context, shown_path
from kernelcast.runtime.record import read_record
from kernelcast.runtime.shipped import STACKS
from kernelcast.runtime.spelling import unknown
from kernelcast.runtime.stack.stack import Stack
from kernelcast.runtime.toml_text import read_toml, toml_document

_MAX_FILE_BYTES = 1 << 18
_TABLES = ("options", "runs", "left_out")


def find_stack(wanted: str | os.PathLike[str]) -> Stack:
    """A stack that ships, by name, or a TOML file.

    Raises:
        UsageError: a name that nothing that ships has.
        DataError: as `read_stack`.
    """
    text = os.fspath(wanted)
    return read_stack(text) if "/" in text or text.endswith(".toml") else stack_named(text)


def shipped_stacks() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in STACKS.glob("*.toml")))


@cache
def stack_named(name: str) -> Stack:
    """A stack that ships.

    Raises:
        UsageError: none has that name.
    """
    if name not in shipped_stacks():
        raise unknown("stack", name, shipped_stacks(), instead="the path of a .toml file works too")
    return read_stack(STACKS / f"{name}.toml")


def read_stack(path: str | os.PathLike[str]) -> Stack:
    """Read a stack's file.

    Raises:
        DataError: it is missing, unreadable, not TOML, or a field is missing, unknown or wrong; one line that names
            file and field.
    """
    where = f"stack {shown_path(Path(path))}"
    values = read_toml(Path(path), where=where, most_bytes=_MAX_FILE_BYTES)
    with error_context(where):
        return read_record(Stack, values)


def stack_toml(stack: Stack) -> str:
    """The stack as a TOML file, with all that is known."""
    values = asdict(stack)
    return toml_document(values | {table: values[table] or None for table in _TABLES})
