"""The kinds of error that a user can meet: one line that names the thing, what was found and what was expected.

For a misspelled name only typing slips are suggested, never another name that looks alike:
`--context-parallel` is not `--sequence-parallel` and `--tp` is not `--dp`, however alike they are written.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Self

_LONGEST = 80
_KIB, _MIB, _GIB, _TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_LONGEST_PATH = 255  # as long as one name in it can be


class Missing(Enum):
    """Marks a missing value."""

    MISSING = "missing"


class KernelcastError(Exception):
    """Base of every error that kernelcast raises on purpose; `exit_code` is what the command line returns.

    An error about a field has data, from which its line is rendered: `field`, the value `found` (`Missing` where there
    is none) and `expected`, in words that a sentence can end with. `subject` replaces the field's name in the line
    (`2 · cp`). An error of any other form has a `text`, and still its field where it is about one. Callers add where
    the field stands, from the inside to the outside: `at` the enclosing field or index, `within` what was read.

    >>> str(UsageError(field="tp", found=3, expected="a divisor of 8").at("stages", 2).within("file a.toml"))
    'file a.toml: stages[2].tp is 3, expected a divisor of 8'
    """

    exit_code = 1

    def __init__(
        self,
        text: str = "",
        *,
        field: str = "",
        fields: tuple[str, ...] = (),
        found: object = Missing.MISSING,
        expected: str = "",
        subject: str = "",
    ) -> None:
        super().__init__(text)
        self.text, self.fields = text, fields
        """A text with a `{}` for each of the request's `fields` that it names."""
        self.found, self.expected, self.subject = found, expected, subject
        self._named = 1 if field else 0  # keys that a text names itself
        self.steps: tuple[str | int, ...] = (field,) if field else ()
        """From the outermost place to the value: places, fields and indices."""

    @property
    def field(self) -> str:
        """The field that it is about, of what was read; empty where it is about none."""
        keys = self._places_and_keys()[1]
        return str(keys[0]) if keys else ""

    @property
    def path(self) -> str:
        """Where the value stands in what was read: `tp`, `stages[2].tp`."""
        return _path(self._places_and_keys()[1])

    @property
    def message(self) -> str:
        """The line without what was read."""
        return self._message(str)

    def _message(self, name: Callable[[str], str]) -> str:
        if self.text:
            # Not `format`: a value in the text may have braces of its own.
            text = self.text
            for field in self.fields:
                text = text.replace("{}", name(field), 1)
            return text
        found = "missing" if self.found is Missing.MISSING else shown_value(self.found)
        line = f"{self.subject or self.path or 'the value'} is {found}"
        return f"{line}, expected {self.expected}" if self.expected else line

    def __str__(self) -> str:
        return self.line()

    def line(self, name: Callable[[str], str] = str) -> str:
        """The whole message. `name` is how a user calls a field of the request, unless it was read from a file."""
        places, keys = self._places_and_keys()
        message = self._message(str if places else name)
        if (self.text or self.subject) and (outer := _path(keys[: len(keys) - self._named])):
            places.append(outer)
        return one_line(": ".join((*places, message)))

    def at(self, *keys: str | int) -> Self:
        """The same error, about a field or an item inside of these."""
        self.steps = (*keys, *self.steps)
        return self

    def within(self, *places: str) -> Self:
        """The same error, found in what is named here, outermost first; its line begins with that, once."""
        if self.steps[: len(places)] != places:
            self.steps = (*map(_Place, places), *self.steps)
        return self

    def _places_and_keys(self) -> tuple[list[str], list[str | int]]:
        """The places with the fields between them, and the keys after the last one."""
        places: list[str] = []
        keys: list[str | int] = []
        for step in self.steps:
            if isinstance(step, _Place):
                places += [*filter(None, [_path(keys)]), step]
                keys = []
            else:
                keys.append(step)
        return places, keys

    @classmethod
    def of(cls, error: "KernelcastError") -> Self:
        """An error of this class with the data of another one."""
        new = cls(error.text)
        new.__dict__.update(error.__dict__)
        return new


class _Place(str):
    """What was read, of a chain of fields and indices."""

    __slots__ = ()


def _path(keys: Iterable[str | int]) -> str:
    path = ""
    for key in keys:
        if isinstance(key, int) or (path and not key.isidentifier()):
            path += f"[{shown(key)}]"
        else:
            path += f".{key}" if path else key
    return path


class UsageError(KernelcastError):
    """Wrong use: a field, option or layout that is not allowed (exit code 2)."""

    exit_code = 2


class DataError(KernelcastError):
    """What was read is missing, damaged or does not hold what is needed (exit code 1)."""


@contextmanager
def error_context(
    *where: str, at: str | int = "", kind: type[KernelcastError] | None = None
) -> Iterator[None]:
    """Errors raised inside are `at` this field and `within` these places, and of class `kind` where one is given.

    >>> with error_context("file a.toml", "run 3"):
    ...     raise UsageError(field="tp", found=3, expected="a divisor of 8")
    Traceback (most recent call last):
    kernelcast.runtime.errors.UsageError: file a.toml: run 3: tp is 3, expected a divisor of 8
    """
    try:
        yield
    except KernelcastError as error:
        if at != "":
            error.at(at)
        error.within(*where)
        if kind is None or isinstance(error, kind):
            raise
        raise kind.of(error) from error


@contextmanager
def system_errors(name: str, what: str, *, missing: str = "", expected: str = "") -> Iterator[None]:
    """Errors of the operating system become DataErrors: what happened to `name`, why, and what was expected.

    `missing` is what is said of a file that does not exist.
    """
    try:
        yield
    except OSError as error:
        is_missing = bool(missing) and isinstance(error, FileNotFoundError)
        text = missing if is_missing else f"{what} ({error.strerror or error})"
        raise DataError(f"{name}: {text}{f', expected {expected}' if expected else ''}") from error


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """For imports from an extra: where a package is missing, a UsageError says that `what` needs it, and `extra`."""
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
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls of terminals (C0, DEL, C1), of lines and of writing direction, and halves of surrogate pairs."""


def printable(text: str) -> str:
    """A text whose control characters are escaped (`\\x1b`); line breaks and tabs stay."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_json(text: str) -> str:
    """The same for JSON or TOML, which mean the same text afterwards (`\\u001b`)."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown(value: object) -> str:
    """`repr` of a value, at most 80 characters; also of numbers too long for Python to print."""
    try:
        return f"{value!r:.{_LONGEST}}"
    except (ValueError, RecursionError):
        # A number above the interpreter's limit of digits, perhaps deep inside; or endless nesting.
        kind = "a number" if isinstance(value, int) else f"a {type(value).__name__}"
        return f"{kind} too long to show"


def shown_value(value: object) -> str:
    """A value as JSON and TOML have it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else shown(value)


def either(names: Iterable[str]) -> str:
    """`a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


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
    """A size in GiB, small ones in MiB or KiB, from 10,000 GiB on in TiB."""
    for scale, unit in ((_KIB, "KiB"), (_MIB, "MiB")):
        if 0 < size_bytes < scale * 1024 / 10:
            return f"{size_bytes / scale:,.1f} {unit}"
    if size_bytes >= 10_000 * _GIB:
        return f"{size_bytes / _TIB:,.1f} TiB"
    return f"{size_bytes / _GIB:,.1f} GiB"


_ALIKE = 0.8
_SHORTEST = 3  # degrees have two letters, and one other letter makes another degree
_MOST, _CLOSE, _TIE = 8, 0.75, 0.01


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """The names of `known` that `name` misspells, the likeliest first.

    Each word is alike, or the words are the same without separators, or two or more are followed by others.

    >>> nearest_names("--micro-bacth", ["--micro-batch", "--global-batch"])
    ['--micro-batch']
    >>> nearest_names("--global-batch-size", ["--micro-batch", "--global-batch"])
    ['--global-batch']
    >>> nearest_names("--tp", ["--pp", "--dp"])
    []
    """
    ours = _words(name[:_LONGEST])

    def is_meant(other: str) -> bool:
        theirs = _words(other)
        if len(theirs) == len(ours):
            return all(map(_alike, ours, theirs))
        if 1 < len(theirs) < len(ours) and ours[: len(theirs)] == theirs:
            return True
        return "".join(ours) == "".join(theirs)

    return sorted(filter(is_meant, known), key=lambda other: (-_likeness(name[:_LONGEST], other), other))


def unknown_field(name: object, known: Iterable[str], *, path: str = "") -> UsageError:
    """The error about a field that does not exist; suggests the one that was probably meant. `path` encloses it."""
    names = list(known)
    near = nearest_names(name, names) if isinstance(name, str) else []
    hint = f" (did you mean {near[0]}?)" if near else f", known are {', '.join(names)}"
    return UsageError(f"field {shown(f'{path}{name}' if isinstance(name, str) else name)} is unknown{hint}")


def unknown(what: str, name: object, known: Iterable[str], *, instead: str = "") -> UsageError:
    """The error about a name that nothing has; `what` is also the field that asks for it, `instead` what works too.

    >>> str(unknown("hardware", "h100-smx", ["h100-sxm", "gh200"]))
    "hardware 'h100-smx' is unknown, nearest is h100-sxm"
    """
    names = list(known)
    words = alternatives(name, names) if isinstance(name, str) else f"known are {', '.join(names)}"
    return UsageError(f"{what} {shown(name)} is unknown, {words}{instead and f'; {instead}'}", field=what)


def alternatives(name: str, known: Iterable[str]) -> str:
    """Words for an error about an unknown name: the nearest names, or all if none is near.

    >>> alternatives("h100-smx", ["h100-sxm", "h100-pcie", "gh200"])
    'nearest is h100-sxm'
    >>> alternatives("h100", ["h100-sxm", "h100-pcie", "gh200"])
    'nearest are h100-sxm, h100-pcie'
    >>> alternatives("h1000", ["h100-sxm", "h100-pcie", "gh200"])
    'nearest are h100-sxm, h100-pcie'
    >>> alternatives("tpu", ["h100-sxm", "gh200"])
    'known are h100-sxm, gh200'
    """
    from difflib import get_close_matches

    names, wanted = list(known), name[-_LONGEST:].lower()
    begun = _plain(wanted)
    near = (
        nearest_names(wanted, names)
        or [one for one in names if begun and _plain(one).startswith(begun)]
        or get_close_matches(wanted, names, n=_MOST, cutoff=_CLOSE)
        or _alike_at_first(begun, names)
    )[:_MOST]
    if not near:
        return f"known are {', '.join(names)}"
    return f"nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}"


def _alike_at_first(wanted: str, names: list[str]) -> list[str]:
    """Names whose beginning is most like what is wanted, with a letter more or less."""
    sizes = range(max(1, len(wanted) - 1), len(wanted) + 2)
    likeness = {one: max(_likeness(wanted, _plain(one)[:size]) for size in sizes) for one in names}
    least = max(_CLOSE, max(likeness.values(), default=0.0) - _TIE)
    return [one for one in names if wanted and likeness[one] >= least]


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name)


def _words(name: str) -> list[str]:
    return [word for word in re.split("[-_ ]", name.lower()) if word]


def _alike(one: str, other: str) -> bool:
    return one == other or (min(len(one), len(other)) >= _SHORTEST and _likeness(one, other) >= _ALIKE)


def _likeness(one: str, other: str) -> float:
    from difflib import SequenceMatcher  # most commands do without it

    return SequenceMatcher(None, one, other).ratio()
