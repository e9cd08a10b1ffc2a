"""Answers as JSON, which has no infinity and no NaN: null stands for them."""

import json
import math
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

from kernelcast.runtime.errors import printable_json


def json_text(document: Any, *, indent: int | None = None, is_ascii: bool = True) -> str:
    """The document; with `is_ascii`, other characters are escaped, and control characters always."""
    try:
        text = json.dumps(document, indent=indent, ensure_ascii=is_ascii, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), indent=indent, ensure_ascii=is_ascii, allow_nan=False)
    return text if is_ascii and "\x7f" not in text else printable_json(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def values_of(one: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Some attributes of an object, by their names and in this order, then others by new names.

    A name may be a path: `estimate.step_time_s` is found under `step_time_s`, and is None where `estimate` is.
    """
    return {
        name: getattr(one, path[0]) if len(path) == 1 else _at(one, path)
        for name, path in _paths(names, tuple(renamed.items()))
    }


@lru_cache(maxsize=1 << 10)
def _paths(names: tuple[str, ...], renamed: tuple[tuple[str, str], ...]) -> list[tuple[str, list[str]]]:
    """The names and paths that `values_of` gets."""
    paths = {name.rpartition(".")[2]: name for name in names} | dict(renamed)
    return [(name, path.split(".")) for name, path in paths.items()]


def _at(one: Any, path: list[str]) -> Any:
    for name in path:
        one = None if one is None else getattr(one, name)
    return one


def plain_values(one: object, *names: str, **renamed: str) -> dict[str, Any]:
    """`values_of` as JSON has them: dataclasses and mappings are tables, tuples are lists."""
    return {name: plain(value) for name, value in values_of(one, *names, **renamed).items()}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "__dataclass_fields__"):
        return plain_values(value, *value.__dataclass_fields__)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
