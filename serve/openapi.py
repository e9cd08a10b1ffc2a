"""The server's OpenAPI 3.1 description at /openapi.json, made from the tables of request fields."""

from collections.abc import Iterable, Mapping
from typing import Any

from kernelcast.plan.answer import PLAN_FORMAT
from kernelcast.runtime.estimate.estimate import ESTIMATE_FORMAT
from kernelcast.runtime.search.compact import LAYOUTS_FORMAT
from kernelcast.runtime.search.result import SEARCH_FORMAT
from kernelcast.runtime.views.pictures import PICTURES_FORMAT
from kernelcast.serve.catalogue import CATALOGUE_FORMAT, MODEL_FORMAT, MODEL_REQUEST
from kernelcast.serve.predicting import CHOICES_FORMAT
from kernelcast.serve.responses import HTML, JSON, TEXT
from kernelcast.serve.schemas import (
    LAYOUTS_FIELDS,
    PREDICT,
    RUN_PLAN,
    SEARCH_FIELDS,
    WALLTIME,
    Schema,
    model_schemas,
)
from kernelcast.walltime.answer import WALLTIME_FORMAT

_PROBLEMS: Mapping[str, str] = {
    "400": "The body is no JSON object.",
    "408": "The body did not come in time.",
    "413": "The body is larger than the server takes.",
    "415": "The body's type is not taken.",
    "422": "A field is unknown, missing, wrong, or does not go with the others.",
    "503": "Too many requests wait already, or this one waited too long.",
}


def document(version: str, models: Iterable[str], *, can_reload: bool) -> dict[str, Any]:
    """The description of a server of this version that knows these models by name."""
    paths = {
        "/predict": _post("Predict a training step.", "PredictRequest", _answer(ESTIMATE_FORMAT, _ESTIMATE)),
        "/pictures": _post(
            "Its timeline, memory and breakdown, drawn.", "PredictRequest", _answer(PICTURES_FORMAT)
        ),
        "/page": _post("Its page of HTML.", "PredictRequest", {"type": "string"}, media=HTML),
        "/trace": _post("Its Chrome trace.", "PredictRequest", {"type": "object"}),
        "/choices": _post("What each degree can be changed to.", "PredictRequest", _answer(CHOICES_FORMAT)),
        "/model": _post("The fields that a model is read as.", "ModelRequest", _answer(MODEL_FORMAT)),
        "/search": _post("Find the fastest layouts.", "SearchRequest", _answer(SEARCH_FORMAT)),
        "/layouts": _post(
            "Find many fast layouts, as a table of numbers.", "LayoutsRequest", _answer(LAYOUTS_FORMAT)
        ),
        "/catalogue": _get("What can be named.", JSON, _answer(CATALOGUE_FORMAT)),
        "/walltime": _walltime(),
        "/plan": _post("Plan a whole run: failures, checkpoints, days.", "PlanRequest", _answer(PLAN_FORMAT)),
        "/health": _get("Whether the server answers, and with which bundle.", JSON, _HEALTH),
        "/metrics": _get("Figures for Prometheus.", TEXT, {"type": "string"}),
        "/openapi.json": _get("This description.", JSON, {"type": "object"}),
    }
    if can_reload:
        problems = {"422": _problem("The new bundle is not sound; the old one answers on.")}
        reload = {
            "summary": "Read the bundle and the site's file again.",
            "responses": {**_ok(JSON, _HEALTH), **problems},
        }
        paths["/reload"] = {"post": reload}
    schemas = {
        **model_schemas(models),
        "PredictRequest": _object(PREDICT, "model", "micro_batch"),
        "ModelRequest": _object({name: PREDICT[name] for name in MODEL_REQUEST}, "model"),
        "SearchRequest": _object(SEARCH_FIELDS, "model", "gpus", "global_batch"),
        "LayoutsRequest": _object(LAYOUTS_FIELDS, "model", "gpus", "global_batch"),
        "WalltimeRequest": _object(WALLTIME),
        "PlanRequest": _object(RUN_PLAN, "model", "micro_batch"),
        "Error": {
            "type": "object",
            "properties": {"error": {"type": "string", "description": "One line."}},
            "required": ["error"],
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kernelcast",
            "version": version,
            "description": "Times of LLM training, predicted.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


_HEALTH: Schema = {
    "type": "object",
    "properties": {
        "status": {"const": "ok"},
        "version": {"type": "string"},
        "bundle": {"type": "string"},
        "bundle_digest": {"type": "string"},
        "loaded_at": {"type": "string"},
    },
    "required": ["status", "version", "bundle", "bundle_digest", "loaded_at"],
}


def _object(fields: Mapping[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
        "additionalProperties": False,
    }


_ESTIMATE: Mapping[str, Schema] = {
    "step_time_s": {"type": "number", "description": "The predicted step."},
    "tokens_per_s": {"type": "number"},
    "model_flops": {"type": "number", "description": "Of a step of the whole job, without recomputation."},
    "tflops_per_device": {"type": "number", "description": "model_flops per second and device, 1e12."},
    "mfu": {"type": ["number", "null"], "description": "Share of the peak; null where that is unknown."},
    "hfu": {"type": ["number", "null"], "description": "As mfu, with what is computed again."},
    "peak": {"type": ["object", "null"], "description": "device, dtype, flops_per_s and their source."},
}
"""What a client looks at first; docs/json.md has all keys."""


def _answer(form: str, fields: Mapping[str, Schema] | None = None) -> Schema:
    known = fields or {}
    return {
        "type": "object",
        "description": f"{form} (docs/json.md)",
        "properties": {"format": {"const": form}, **known},
        "required": ["format", *known],
    }


def _post(summary: str, request: str, answer: Schema, *, media: str = JSON) -> dict[str, Any]:
    body = {"required": True, "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{request}"}}}}
    problems = {status: _problem(text) for status, text in _PROBLEMS.items()}
    return {
        "post": {"summary": summary, "requestBody": body, "responses": {**_ok(media, answer), **problems}}
    }


def _walltime() -> dict[str, Any]:
    described = _post("Predict how long a job takes.", "WalltimeRequest", _answer(WALLTIME_FORMAT))
    post = described["post"]
    post["description"] = (
        "With a batch script as text/plain the answer is text too: Slurm's time limit on the first line (empty "
        "without one), then lines for the job's user."
    )
    post["parameters"] = [
        _parameter("asked", {"type": "string"}, "With a script as text: a time limit that the job has."),
        _parameter(
            "slurm",
            {"type": "array", "items": {"type": "string", "examples": ["nodes=2"]}},
            "With a script as text: NAME=VALUE, what the job asks of Slurm.",
        ),
    ]
    post["requestBody"]["content"][TEXT] = {"schema": {"type": "string"}}
    for response in post["responses"].values():
        response["content"][TEXT] = {"schema": {"type": "string"}}
    return described


def _parameter(name: str, schema: Schema, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _get(summary: str, media: str, schema: Schema) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": _ok(media, schema)}}


def _ok(media: str, schema: Schema) -> dict[str, Any]:
    return {"200": {"description": "The answer.", "content": {media: {"schema": schema}}}}


def _problem(description: str) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {"description": description, "content": {JSON: error}}
