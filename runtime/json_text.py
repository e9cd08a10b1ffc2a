"""Answers as JSON, which has no infinity and no NaN: null stands for them."""

import json
import math
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


def values_of(one: object, *names: str) -> dict[str, Any]:
    """Some attributes of an object, by their names and in this order."""
    return {name: getattr(one, name) for name in names}
