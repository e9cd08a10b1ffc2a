"""The kinds of error that a user can meet: one line that names the thing, what was found and what was expected."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 80
_KIB, _MIB, _GIB, _TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_LONGEST_PATH = 255  # as long as one name in it can be


class KernelcastError(Exception):
    """Base of every error that kernelcast raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(KernelcastError):
    """What was asked for makes no sense: a field, option or layout outside what is allowed (exit code 2)."""

    exit_code = 2


class DataError(KernelcastError):
    """What was read is missing, damaged or does not hold what is needed (exit code 1)."""


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Import packages inside that only an extra brings.

    Raises:
        UsageError: one of them is not installed; says that `what` needs it, and `extra`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kernelcast"):
            raise
        raise UsageError(
            f"{what} needs the package {error.name}, which is not installed; "
            f"expected: pip install 'kernelcast[{extra}]'"
        ) from error


def one_line(text: str) -> str:
    """A text whose line breaks and other unprintable characters are escaped: names of files can hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """`repr` of a value, at most 80 characters; also of numbers too long for Python to print."""
    try:
        return f"{value!r:.{_LONGEST}}"
    except (ValueError, RecursionError):
        # A number above the interpreter's limit of digits, perhaps deep inside; or endless nesting.
        kind = "a number" if isinstance(value, int) else f"a {type(value).__name__}"
        return f"{kind} too long to show"


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as it is, or quoted when it would not stay on one line; the end of a long one."""
    text = os.fspath(path)
    if len(text) > _LONGEST_PATH:
        text = f"...{text[-_LONGEST_PATH:]}"
    return text if text.isprintable() else repr(text)


def shown_name(name: str) -> str:
    """A field's name as it is, or as a value is shown where no field has such a name."""
    return name if name.isidentifier() and name.isprintable() and len(name) <= _LONGEST else shown(name)


def shown_size(size_bytes: float) -> str:
    """A size in GiB, small ones in MiB or KiB, those of 10,000 GiB and more in TiB."""
    for scale, unit in ((_KIB, "KiB"), (_MIB, "MiB")):
        if 0 < size_bytes < scale * 1024 / 10:
            return f"{size_bytes / scale:,.1f} {unit}"
    if size_bytes >= 10_000 * _GIB:
        return f"{size_bytes / _TIB:,.1f} TiB"
    return f"{size_bytes / _GIB:,.1f} GiB"
