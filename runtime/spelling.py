"""Which names a misspelled one may have meant: typing slips only, never another name of a similar look.

`--context-parallel` is not `--sequence-parallel` and `--tp` is not `--dp`, however alike they are written.
"""

import re
from collections.abc import Iterable

from kernelcast.runtime.errors import UsageError, shown

_ALIKE = 0.8
_SHORTEST = 3  # degrees have two letters, and one other letter makes another degree
_LONGEST = 80
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
    """Words for an error about a name that none has: the nearest ones, or all where none is near.

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
