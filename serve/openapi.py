"""The server's OpenAPI 3.1 description at /openapi.json, made from the tables of request fields."""

from collections.abc import Iterable, Mapping
from typing import Any

from kernelcast.plan.answer import PLAN_FORMAT
from kernelcast.runtime.estimate.estimate import ESTIMATE_FORMAT
from kernelcast.runtime.search.compact import LAYOUTS_FORMAT
from kernelcast.runtime.search.result import SEARCH_FORMAT
from kernelcast.runtime.views.estimate_page import PICTURES_FORMAT
from kernelcast.serve.answering import CATALOGUE_FORMAT, MODEL_FORMAT, MODEL_REQUEST
from kernelcast.serve.messages import HTML, JSON, TEXT
from kernelcast.serve.questions import CHOICES_FORMAT
from kernelcast.serve.schemas import (
    LAYOUTS_FIELDS,
    PREDICT,
    RUN_PLAN,
    SEARCH_FIELDS,
    TEXTS,
    WALLTIME,
    Schema,
    model_schemas,
)
from kernelcast.walltime.answer import WALLTIME_FORMAT


def document(version: str, models: Iterable[str], *, can_reload: bool) -> dict[str, Any]:
    """The description of a server of this version that knows these models by name."""
    paths = {
        "/predict": _post(
            "Predict a training step.", "PredictRequest", _answer(ESTIMATE_FORMAT, TEXTS["estimate"])
        ),
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
        "/catalogue": _get("Names of hardware, models, fabrics and stacks.", JSON, _answer(CATALOGUE_FORMAT)),
        "/walltime": _walltime(),
        "/plan": _post("Plan a whole run: failures, checkpoints, days.", "PlanRequest", _answer(PLAN_FORMAT)),
        "/health": _get("Whether the server answers, and with which bundle.", JSON, TEXTS["health"]),
        "/metrics": _get("Figures for Prometheus.", TEXT, {"type": "string"}),
        "/openapi.json": _get("This description.", JSON, {"type": "object"}),
    }
    if can_reload:
        problems = {"422": _problem("The new bundle is not valid; the old one stays in use.")}
        reload = {
            "summary": "Reload the bundle and the site file.",
            "responses": {**_ok(JSON, TEXTS["health"]), **problems},
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
        "Error": TEXTS["error"],
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


def _object(fields: Mapping[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
        "additionalProperties": False,
    }


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
    problems = {status: _problem(text) for status, text in TEXTS["problems"].items()}
    return {
        "post": {"summary": summary, "requestBody": body, "responses": {**_ok(media, answer), **problems}}
    }


def _walltime() -> dict[str, Any]:
    described = _post("Predict how long a job takes.", "WalltimeRequest", _answer(WALLTIME_FORMAT))
    post = described["post"]
    post |= TEXTS["walltime"]
    post["requestBody"]["content"][TEXT] = {"schema": {"type": "string"}}
    for response in post["responses"].values():
        response["content"][TEXT] = {"schema": {"type": "string"}}
    return described


def _get(summary: str, media: str, schema: Schema) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": _ok(media, schema)}}


def _ok(media: str, schema: Schema) -> dict[str, Any]:
    return {"200": {"description": "The answer.", "content": {media: {"schema": schema}}}}


def _problem(description: str) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {"description": description, "content": {JSON: error}}
