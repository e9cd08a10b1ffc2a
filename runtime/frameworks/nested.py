"""Settings of TOML and JSON by their keys joined by dots; of YAML by the last part of their names.

`tensor_model_parallel_size: 8` in YAML, `model.tensor_model_parallel_size=8` of Hydra and the same argument of a recipe
in Python mean the same. Nothing is executed.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from kernelcast.runtime import small_file
from kernelcast.runtime.errors import DataError, one_line
from kernelcast.runtime.frameworks.rows import Settings
from kernelcast.runtime.frameworks.slurm import script_variables

_DEEPEST = 8
"""Levels of nesting that are looked into."""


def parse_toml(text: str) -> Settings:
    """The settings of a TOML document; DataError where it is not TOML."""
    try:
        return dict(_leaves(small_file.parse_toml(text.encode())))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid TOML ({_first_line(error)})") from error


def parse_json(text: str) -> Settings:
    """The settings of a JSON object; DataError where it is not one."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({_first_line(error)})") from error
    return dict(_leaves(values))


def render_toml(settings: Settings) -> str:
    """TOML of settings with keys `table.name`, in the tables' order."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, {})[name] = value
    return small_file.toml_document(tables).rstrip()


def render_json(settings: Settings) -> str:
    return json.dumps(nested(settings), indent=2)


def nested(settings: Settings) -> dict[str, Any]:
    """Tables of settings with keys `table.name`; a table stands where its first key does."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, name = key.split(".")
        table = tables
        for one in outer:
            table = table.setdefault(one, {})
        table[name] = value
    return tables


def _leaves(values: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _leaves(value, f"{before}{name}.", depth + 1)
        else:
            yield before + name, value


def _first_line(error: Exception) -> str:
    return one_line((str(error).splitlines() or [""])[0])


_COMMENT = re.compile(r"(^|[ \t])#.*$", re.MULTILINE)
_PAIR = re.compile(
    r"(?<![\w.$-])\+{0,2}((?:[A-Za-z]\w*\.)*[A-Za-z]\w*)[\"']?[ \t]*[:=][ \t]*[\"']?"
    r"(\$\{[\w.]+\}|(?<=[\"'])[^\"'\n]+|[^\s,\"'#()\[\]{}]+)"
)
_REFERENCE = re.compile(r"\$\{(?:\w+\.)*(\w+)\}")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None, "~": None}
_MOST_REFERENCES = 4


def parse_flat(text: str, keys: Collection[str]) -> Settings:
    """Settings by key; a name that ends as one of `keys` stands for it, others are kept as they are written.

    `${max_seq_len}` is what another line gives; an unknown one is no setting, and neither is null.
    """
    known = {key.rpartition(".")[2]: key for key in keys}
    variables = script_variables(text)
    pairs: dict[str, Any] = {name: value for name, value in variables.items() if name in keys}
    for name, value in _PAIR.findall(_COMMENT.sub(r"\1", text)):
        last = name.rpartition(".")[2]
        reference = _REFERENCE.fullmatch(value)
        if reference is None or reference[1] != last:  # `max_seq_len: ${max_seq_len}` of an inner table
            pairs[known.get(last, name)] = value
    last_parts = {name.rpartition(".")[2]: value for name, value in pairs.items()} | variables
    found = {}
    for name, value in pairs.items():
        for _ in range(_MOST_REFERENCES):
            reference = _REFERENCE.fullmatch(value) or re.fullmatch(r"\$(\w+)", value)
            if reference is None:
                break
            value = last_parts.get(reference[1], "null")
        plain = _WORDS.get(value.lower(), value)
        if plain is not None:
            found[name] = plain
    return found


def render_yaml(settings: Settings) -> str:
    return "\n".join(_lines(nested(settings), ""))


def _lines(table: dict[str, Any], indent: str) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_text(value)}"


def _text(value: Any) -> str:
    """A scalar of YAML; `|` and `*` mean something there."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and re.search(r"[|*]", value) else str(value)
