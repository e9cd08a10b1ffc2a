"""The fields of every request as JSON Schema: for /openapi.json and to check field names."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kernelcast.plan.fields import PLAN
from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.frameworks.slurm import OPTIONS
from kernelcast.runtime.request.field_types import Field
from kernelcast.runtime.request.fields import GPU_MEMORY, MEMORY, MODEL, REQUEST, SEARCH, SHARED
from kernelcast.runtime.search.read_question import LIMITS, MOST_ITEMS, USUAL, few_values
from kernelcast.walltime.fields import JOB_FIELDS

Schema = dict[str, Any]

TEXTS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("openapi.toml").read_text(encoding="utf-8"))
"""What no table of fields says: errors, answers and fields of the server's own."""

MAX_TOP = 100
"""Layouts of a search's answer; a command prints more."""
MAX_LAYOUTS = 10_000
"""Layouts of /layouts, each a row of numbers."""


def _one_or_several(field: Field, usual: str = "") -> Schema:
    """A value of the field or a list of them; numbers without few values also as text with ranges."""
    one, ranges = field.kind.schema, usual and not few_values(field)
    pattern = r"^[0-9]{1,18}(-[0-9]{0,18})?(,[0-9]{1,18}(-[0-9]{0,18})?)*$"
    return {
        "description": field.help
        + (" Numbers, or a text such as 1,2,4-8 or 16-." if ranges else "")
        + (f" Default: {usual}." if usual else ""),
        "anyOf": [
            *([{"type": "string", "pattern": pattern}] if ranges else []),
            one,
            {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_ITEMS, "uniqueItems": True},
        ],
    }


def model_schemas(names: Iterable[str]) -> dict[str, Schema]:
    """A model: one of these names, or its fields."""
    return {
        "ModelFields": {
            "type": "object",
            "description": "Fields of a model file (docs/models.md).",
            "properties": {name: field.schema for name, field in MODEL.items()},
            "required": [name for name, field in MODEL.items() if field.is_required and name != "name"],
            "additionalProperties": False,
        },
        "Model": {
            "description": "A model by name (built in, or one of the site's), by the fields of a model file, or as "
            "Hugging Face's config.json.",
            "anyOf": [
                {"type": "string", "enum": list(names)},
                {"$ref": "#/components/schemas/ModelFields"},
                {
                    "type": "object",
                    "properties": {"model_type": {"type": "string", "examples": ["llama"]}},
                    "required": ["model_type"],
                },
            ],
        },
    }


_MODEL: Schema = TEXTS["fields"]["model"]
_HARDWARE: Schema = {**TEXTS["fields"]["hardware"], "enum": list(all_hardware())}
_FABRIC: Schema = {
    "description": "What connects the devices: a fabric by name (one that ships, or the site's), or the fields of a "
    f"description (docs/fabrics.md). Default: {REQUEST['fabric'].otherwise}.",
    "anyOf": [
        {"type": "string", "minLength": 1, "examples": ["h100-3200g"]},
        {"type": "object", "required": ["name", "devices_per_node"]},
    ],
}

PREDICT: Mapping[str, Schema] = {
    "model": _MODEL,
    "hardware": _HARDWARE,
    **{name: field.schema for name, field in REQUEST.items()},
    "fabric": _FABRIC,
    **{name: field.schema for name, field in MEMORY.items()},
}

RUN_PLAN: Mapping[str, Schema] = {**PREDICT, **{name: field.schema for name, field in PLAN.items()}}

SEARCH_FIELDS: Mapping[str, Schema] = {
    "model": _MODEL,
    "hardware": _HARDWARE,
    **{
        name: REQUEST[name].schema
        for name in (
            "sequence_length",
            "global_batch",
            "gpus_per_node",
            "stack",
            "framework",
            "timeline",
            "bucket_entries",
        )
    },
    **{name: field.schema for name, field in SHARED.items()},
    "fabric": _FABRIC,
    "gpus": _one_or_several(SEARCH["gpus"]),
    **{name: field.schema for name, field in MEMORY.items()},
    GPU_MEMORY.name: {
        **GPU_MEMORY.schema,
        "type": ["integer", "null"],
        "description": "Memory of a device; null for no limit. Default: the bundle's.",
    },
    **{name: _one_or_several(field, USUAL.get(name, "any")) for name, field in LIMITS.items()},
    "rank_by": SEARCH["rank_by"].schema,
    "top": {**SEARCH["top"].schema, "maximum": MAX_TOP},
    "fit_probability": SEARCH["fit_probability"].schema,
}

LAYOUTS_FIELDS: Mapping[str, Schema] = {
    **SEARCH_FIELDS,
    "top": {**SEARCH["top"].schema, "maximum": MAX_LAYOUTS},
}

_JOB: dict[str, Schema] = {
    name: {
        "description": f"{field.schema['description']} Accepts {field.kind.expected}.",
        "type": ["string", "number", "boolean", "array"],
    }
    for name, field in JOB_FIELDS.items()
    if name not in ("bundle", "hardware", "model")
}

WALLTIME: Mapping[str, Schema] = {
    "model": _MODEL,
    "hardware": _HARDWARE,
    **_JOB,
    "fabric": _FABRIC,
    "script": TEXTS["fields"]["script"],
    "slurm": {**TEXTS["fields"]["slurm"], "properties": {name: {"type": "string"} for name in OPTIONS}},
    "asked": TEXTS["fields"]["asked"],
}
