"""Caches bounded by bytes: `functools.lru_cache` counts answers, however large each is."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import cache, wraps
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from kernelcast.runtime.dataclass import fields, is_dataclass

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")

_ENTRY_BYTES = 256
"""Of an entry itself: its place in the order, and the numbers in its key."""


class Remembered(Generic[K, V]):
    """The values used last, by key, bounded by the sizes that they are put with. Safe to use from several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key, None without one."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Remember a value; those that were not used for longest go."""
        size = size_bytes + _ENTRY_BYTES
        with self._lock:
            if size > self._most_bytes or key in self._values:
                return
            self._values[key] = value, size
            self._bytes += size
            while self._bytes > self._most_bytes:
                _, (_, dropped) = self._values.popitem(last=False)
                self._bytes -= dropped

    @property
    def size_bytes(self) -> int:
        """What is remembered, by the sizes that it was put with."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._values)


def remembered(most_bytes: int) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Like `lru_cache`, for a function whose answers and arguments may be large; None is not remembered."""

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        known = Remembered[Any, V](most_bytes)

        @wraps(function)
        def asked(*given: P.args, **named: P.kwargs) -> V:
            key = (given, tuple(named.items())) if named else given
            found = known.get(key)
            if found is None:
                found = function(*given, **named)
                known.put(key, found, bytes_of((key, found)))
            return found

        return asked

    return decorate


def bytes_of(value: object) -> int:
    """Memory of a value with all that it holds, each object counted once; classes and functions hold nothing."""
    seen = set[int]()
    waiting, total = [value], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # What `sys.getsizeof` knows of a view is its own size, not that of what it looks at.
        total += one.nbytes + 128 if isinstance(one, np.ndarray) else sys.getsizeof(one)
        held = _holds(type(one))  # type: ignore[arg-type]  # classes are hashable
        if held is not None:
            waiting.extend(held(one))
    return total


@cache
def _holds(kind: type) -> Callable[[Any], Iterable[object]] | None:
    """How values of a type say what they hold, found once for each type; None of those that hold nothing."""
    if issubclass(kind, dict):
        return lambda one: (*one.keys(), *one.values())
    if issubclass(kind, list | tuple | set | frozenset):
        return iter
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        if kind.__dictoffset__:
            return lambda one: (one.__dict__,)
        return lambda one: [getattr(one, name) for name in names]
    return None
