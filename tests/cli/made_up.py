"""Instances of dataclasses drawn by their annotations, for what prints answers that take long to compute."""

import ast
import inspect
import math
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from kernelcast.runtime.operators import OPERATORS

WORDS = ("alpha", "beta", "a longer name", "h100-sxm", "x")
COUNTS = (0, 1, 2, 3, 17, 1_234, 56_789)


@cache
def _hints(kind: type) -> dict[str, Any]:
    known: dict[str, Any] = {"Mapping": Mapping, "Sequence": Sequence}
    for module in (sys.modules[one.__module__] for one in reversed(kind.__mro__) if one is not object):
        known |= _imported(module) | vars(module)
    return get_type_hints(kind, localns=known)


@cache
def _imported(module: types.ModuleType) -> dict[str, Any]:
    """What a module of kernelcast imports of others, for types or inside of a function."""
    if not module.__name__.startswith("kernelcast."):
        return {}
    found = [one for one in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(one, ast.ImportFrom)]
    ours = [(one.module, of.name) for one in found if "kernelcast." in (one.module or "") for of in one.names]
    return {name: getattr(import_module(source), name, None) for source, name in ours}


class Maker:
    """Draws by a seed; `given` are what to choose from for a type, a field's name, or `Type.field`."""

    def __init__(self, seed: int, given: Mapping[Any, Sequence[Any]]) -> None:
        self.drawn, self.given = Random(seed), given

    def __call__(self, hint: Any, name: str = "") -> Any:
        """A value of this type for a field of this name."""
        short = name.rpartition(".")[2]
        for key in (name, short, hint):
            if isinstance(key, str | type) and key in self.given:
                return self.drawn.choice(self.given[key])
        origin, inside = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self(inside[0], name)
        if origin is Literal:
            return self.drawn.choice(inside)
        if origin in (Union, types.UnionType):
            chosen = [one for one in inside if one is not type(None)]
            is_none = type(None) in inside and self.drawn.random() < 0.3
            return None if is_none else self(chosen[0], name)
        if origin is tuple and inside[-1] is not Ellipsis:
            return tuple(self(one, name) for one in inside)
        if origin in (tuple, list, Sequence, set, frozenset):
            found = [self(inside[0], name) for _ in range(self.drawn.choice([1, 2, 3]))]
            return found if origin is list else tuple(found) if origin in (tuple, Sequence) else origin(found)
        if origin in (dict, Mapping):
            return {self(inside[0], name): self(inside[1], name) for _ in range(self.drawn.choice([1, 2, 3]))}
        if is_dataclass(hint):
            return self.of(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self.drawn.choice(list(hint))
        return self._plain(hint, short)

    def of(self, kind: Any, **stated: Any) -> Any:
        """An instance, some of whose fields are stated; nothing that the class checks or computes is done."""
        made = object.__new__(kind)
        for one in fields(kind):
            value = (
                stated[one.name]
                if one.name in stated
                else self(_hints(kind)[one.name], f"{kind.__name__}.{one.name}")
            )
            object.__setattr__(made, one.name, value)
        return made

    def _plain(self, hint: Any, name: str) -> Any:
        if hint is bool:
            return self.drawn.random() < 0.5
        if hint is int:
            return (
                int(10 ** self.drawn.uniform(3, 11)) if name.endswith("bytes") else self.drawn.choice(COUNTS)
            )
        if hint is float:
            if name.endswith(("inside", "coverage", "share", "probability")):
                return self.drawn.random()
            if name.endswith(("_s", "seconds")):
                return 10 ** self.drawn.uniform(-4, 3)
            if name.endswith(("_us", "_bytes")):
                return 10 ** self.drawn.uniform(0, 7)
            return math.copysign(10 ** self.drawn.uniform(-3, 0.3), self.drawn.random() - 0.2)
        if hint is Path:
            return Path(f"{name}.x")
        if name.endswith("_at"):
            return "2026-01-02T03:04:05+00:00"
        return self.drawn.choice(
            list(OPERATORS) if name == "operator" else [f"{name} {one}" for one in WORDS]
        )
