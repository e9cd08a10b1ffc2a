"""Which names a misspelled one may have meant: typing slips only, never another name of a similar look.

`--context-parallel` is not `--sequence-parallel` and `--tp` is not `--dp`, however alike they are written.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_ALIKE = 0.8
_SHORTEST = 3  # degrees have two letters, and one other letter makes another degree


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that `name` misspells, the likeliest first.

    >>> nearest_names("--micro-bacth", ["--micro-batch", "--global-batch"])
    ['--micro-batch']
    >>> nearest_names("--global-batch-size", ["--micro-batch", "--global-batch"])
    ['--global-batch']
    >>> nearest_names("--tp", ["--pp", "--dp"])
    []
    """
    found = [
        (_likeness(name, other), other) for other in known if len(name) <= 80 and _misspells(name, other)
    ]
    return [other for _, other in sorted(found, key=lambda pair: (-pair[0], pair[1]))]


def _misspells(name: str, other: str) -> bool:
    ours, theirs = _words(name), _words(other)
    if len(ours) == len(theirs):
        return all(map(_alike, ours, theirs))
    if 1 < len(theirs) < len(ours) and ours[: len(theirs)] == theirs:
        return True  # micro_batch_size
    return "".join(ours) == "".join(theirs)  # globalbatch


def _words(name: str) -> list[str]:
    return [word for word in re.split("[-_ ]", name.lower()) if word]


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    return min(len(one), len(other)) >= _SHORTEST and _likeness(one, other) >= _ALIKE


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
