"""The fields of every request, as JSON Schema: what /openapi.json says, and which fields are known."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.request.layout import MAX_DEGREE, Recompute, Schedule
from kernelcast.runtime.request.model import MAX_LAYERS, MAX_SIZE
from kernelcast.runtime.search.question import RankBy
from kernelcast.runtime.step.timeline_kinds import TimelineKind
from kernelcast.walltime import FIELDS
from kernelcast.walltime.slurm import OPTIONS

Schema = dict[str, Any]

MAX_TOP = 100
"""Layouts of a search's answer; a command prints more."""

_MAX_MEMORY_BYTES = 1 << 60


def _whole(description: str, high: int = MAX_DEGREE, *, low: int = 1, **more: Any) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description, **more}


def _choice(description: str, choices: Any, **more: Any) -> Schema:
    return {"type": "string", "enum": list(get_args(choices)), "description": description, **more}


def _several(item: Schema, description: str) -> Schema:
    one = {name: value for name, value in item.items() if name not in ("description", "default")}
    return {
        "description": description,
        "anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": 64, "uniqueItems": True}],
    }


def _numbers(description: str) -> Schema:
    return {
        "description": f"{description}: numbers, or a text such as 1,2,4-8 or 16-. Not given: any.",
        "anyOf": [
            {"type": "string", "pattern": r"^[0-9]{1,18}(-[0-9]{0,18})?(,[0-9]{1,18}(-[0-9]{0,18})?)*$"},
            {"type": "integer", "minimum": 1, "maximum": MAX_DEGREE},
            {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": MAX_DEGREE},
                "minItems": 1,
                "maxItems": 64,
            },
        ],
    }


def _model_fields() -> Schema:
    hints = get_type_hints(ModelConfig)
    properties: dict[str, Schema] = {}
    for field in fields(ModelConfig):
        kind = hints[field.name]
        if kind is bool:
            properties[field.name] = {"type": "boolean"}
        elif kind is str:
            properties[field.name] = {"type": "string", "minLength": 1}
        elif get_args(kind):
            properties[field.name] = {"type": "string", "enum": list(get_args(kind))}
        else:
            high = {"layers": MAX_LAYERS, "forward_syncs": 100, "backward_syncs": 100}
            low = 0 if field.name in _MAY_BE_ZERO else 1
            properties[field.name] = {
                "type": "integer", "minimum": low, "maximum": high.get(field.name, MAX_SIZE)
            }  # fmt: skip
    return {
        "type": "object",
        "description": "Fields of a model file (docs/models.md).",
        "properties": properties,
        "required": [
            field.name for field in fields(ModelConfig) if field.default is MISSING and field.name != "name"
        ],
        "additionalProperties": False,
    }


_MAY_BE_ZERO = ("learned_positions", "sliding_window", "forward_syncs", "backward_syncs")


def model_schemas(names: Iterable[str]) -> dict[str, Schema]:
    """What a model may be, where these are known by name."""
    return {
        "ModelFields": _model_fields(),
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


_MODEL: Mapping[str, Schema] = {
    "model": {"$ref": "#/components/schemas/Model"},
    "sequence_length": _whole("Tokens of a sequence. Not given: the model's.", MAX_SIZE),
}

PREDICT: Mapping[str, Schema] = MappingProxyType(
    {
        **_MODEL,
        "pp": _whole("Pipeline stages.", default=1),
        "tp": _whole("Model (tensor) parallel degree.", default=1),
        "dp": _whole("Data parallel degree.", default=1),
        "micro_batch": _whole("Samples per micro-batch."),
        "micro_batches": _whole("Micro-batches per update (or global_batch)."),
        "global_batch": _whole("Samples per update; gives the micro-batches.", MAX_DEGREE**2),
        "recompute": _choice("Activation recomputation.", Recompute, default="none"),
        "schedule": _choice("Order of forward and backward passes.", Schedule, default="1f1b"),
        "virtual_stages": _whole("Chunks per stage of an interleaved schedule.", default=1),
        "zero": _whole("What data parallelism shards: ZeRO 0 to 3.", 3, low=0, default=1),
        "sequence_parallel": {
            "type": "boolean", "default": False, "description": "Cut norms and residuals along the sequence.",
        },
        "layer_counts": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": MAX_DEGREE},
            "description": "Encoders of each stage (or chunk). Not given: spread evenly.",
        },
        "gpus_per_node": _whole("Devices per node. Not given: the bundle's, else one node."),
        "bucket_entries": _whole("Entries of the framework's bucket for collectives.", MAX_SIZE),
        "timeline": _choice("Exact simulation, or the paper's eq. 7.", TimelineKind, default="simulate"),
        "gpu_memory_bytes": _whole("Memory of a device. Not given: the bundle's.", _MAX_MEMORY_BYTES),
    }
)  # fmt: skip

SEARCH: Mapping[str, Schema] = MappingProxyType(
    {
        **_MODEL,
        "gpus": _several(_whole(""), "Devices, all of which are used: one number or several."),
        "global_batch": _whole("Samples per update.", MAX_SIZE),
        "gpus_per_node": _whole("Devices per node. Not given: the bundle's.", MAX_SIZE),
        "gpu_memory_bytes": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Memory of a device; null leaves no layout out. Not given: the bundle's.",
        },
        "pp": _numbers("Pipeline stages"),
        "tp": _numbers("Model parallel degrees"),
        "dp": _numbers("Data parallel degrees"),
        "micro_batch": _numbers("Samples per micro-batch"),
        "micro_batches": _numbers("Micro-batches per update"),
        "virtual_stages": _numbers("Chunks per device, interleaved"),
        "schedules": _several(_choice("", Schedule), "Pipeline schedules. Not given: all."),
        "recompute": _several(_choice("", Recompute), "Activation recomputation. Not given: all."),
        "zero": _several(_whole("", 3, low=0), "ZeRO stages. Not given: all."),
        "sequence_parallel": _several({"type": "boolean"}, "Sequence parallelism. Not given: both."),
        "timeline": _choice("Exact simulation, or the paper's eq. 7.", TimelineKind, default="simulate"),
        "rank_by": _choice("What makes a layout better.", RankBy, default="step-time"),
        "bucket_entries": _whole("Entries of the framework's bucket for collectives.", MAX_SIZE),
        "top": _whole("How many of the best to answer.", MAX_TOP, default=10),
    }
)

_JOB: dict[str, Schema] = {
    field.name: {
        "description": f"{field.help} Accepts {field.kind.expected}.",
        "type": ["string", "number", "boolean", "array"],
    }
    for field in FIELDS.values()
    if not field.site_only and field.name not in ("bundle", "model")
}

WALLTIME: Mapping[str, Schema] = MappingProxyType(
    {
        "model": {"$ref": "#/components/schemas/Model"},
        **_JOB,
        "script": {
            "type": "string",
            "description": "A batch script: its #KERNELCAST and #SBATCH lines count; fields of the request go before.",
        },
        "slurm": {
            "type": "object",
            "description": "What the job asks of Slurm, by long option names: the layout must fit it.",
            "properties": {name: {"type": "string"} for name in OPTIONS},
            "additionalProperties": False,
        },
        "asked": {
            "type": "string",
            "description": "A time limit that the job has; the answer warns when it is too short.",
        },
    }
)
