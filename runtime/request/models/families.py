"""Families of `config.json` by `model_type`: rows of runtime/shipped/families.toml, which explains them."""

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.request.model import DERIVED
from kernelcast.runtime.request.models import computed
from kernelcast.runtime.shipped import FAMILIES

NEEDED = object()


@dataclass(frozen=True, slots=True)
class Given:
    """Names of a configuration's field, the first present one counts, and its default."""

    names: tuple[str, ...]
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A row: where each field comes from (a value, `Given`, or a reader), and the values that are modelled `only`."""

    fields: Mapping[str, Any]
    only: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Families by `model_type`, types of text models in others, and why a type is `refused`.

    `fields` name fields of a configuration that belong to a layer which is not modelled, and why it is not.
    """

    known: Mapping[str, Family]
    text_parts: Mapping[str, str]
    refused: Mapping[str, str]
    fields: Mapping[str, str]
    vision: str

    def layers_of(self, values: Mapping[str, Any]) -> str:
        """Layers of an unknown family that are not modelled, by the fields of its configuration; empty without any."""
        found: dict[str, list[str]] = {}
        for name, value in values.items():
            if name in self.fields and value is not None:
                found.setdefault(self.fields[name], []).append(name)
        return "; ".join(f"{reason} ({', '.join(names)})" for reason, names in found.items())


@cache
def families() -> Families:
    """What ships."""
    table = tomllib.loads(FAMILIES.read_text(encoding="utf-8"))
    rows: dict[str, Family] = {}
    for name, row in {**table["parts"], **table["families"]}.items():
        parents = [rows[one] for one in row.pop("like", ())]
        only = {key: value for one in parents for key, value in one.only.items()} | row.pop("only", {})
        fields = {key: value for one in parents for key, value in one.fields.items()}
        rows[name] = Family(fields=fields | {key: _source(value) for key, value in row.items()}, only=only)
    reasons = table["refused"].values()
    refused = {name: one["reason"] for one in reasons for name in one["names"].split()}
    fields = {name: one["reason"] for one in reasons for name in one.get("fields", "").split()}
    return Families(
        known={name: rows[name] for name in table["families"]},
        text_parts=table["text_parts"],
        refused=refused,
        fields=fields,
        vision=table["refused"]["vision"]["reason"],
    )


def _source(value: Any) -> Any:
    """Where a field comes from: the value itself, a field of the configuration, or a reader."""
    if not isinstance(value, dict):
        return DERIVED if value == "derived" else value
    [(name, first), *options] = value.items()
    arguments, named = first if isinstance(first, list) else [first], dict(options)
    if name == "of":
        default = named.get("default", NEEDED)
        return Given(tuple(arguments), DERIVED if default == "derived" else default)
    return getattr(computed, first) if name == "reader" else getattr(computed, name)(*arguments, **named)
