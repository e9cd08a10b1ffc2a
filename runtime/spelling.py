"""Which names a misspelled one may have meant: typing slips only, never another name of a similar look.

`--context-parallel` is not `--sequence-parallel` and `--tp` is not `--dp`, however alike they are written.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

_ALIKE = 0.8
_SHORTEST = 3  # degrees have two letters, and one other letter makes another degree
_LONGEST = 80
_MOST, _CLOSE = 8, 0.75


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that `name` misspells, the likeliest first.

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
    """Names that begin like what is wanted, the likeliest first."""
    likeness = {one: _likeness(wanted, _plain(one)[: len(wanted)]) for one in names}
    return [
        one for one in sorted(names, key=lambda one: -likeness[one]) if wanted and likeness[one] >= _CLOSE
    ]


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name)


def _words(name: str) -> list[str]:
    return [word for word in re.split("[-_ ]", name.lower()) if word]


def _alike(one: str, other: str) -> bool:
    return one == other or (min(len(one), len(other)) >= _SHORTEST and _likeness(one, other) >= _ALIKE)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
