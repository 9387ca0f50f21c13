"""The OpenAPI document: the read routes as FastAPI knows them, the submit routes with each model's own schemas."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from penstock.gateway.problems import TITLES
from penstock.gateway.registry import ModelEntry, VersionEntry
from penstock.job import PUBLIC_STATES

PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}
JOB_REF = {"$ref": "#/components/schemas/Job"}
_PARAMETERS = [
    {"name": "priority", "in": "query", "schema": {"type": "string", "enum": ["interactive", "bulk"]}},
    {
        "name": "deadline_s",
        "in": "query",
        "description": "Seconds from submit to the end",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": 255}},
]
_PREFER = {"name": "Prefer", "in": "header", "description": "wait=N, respond-async", "schema": {"type": "string"}}
_TEXT = {"type": "string"}
_MOMENT = {"type": "string", "format": "date-time"}
_JOB_SCHEMA = {
    "type": "object",
    "required": ["id", "model", "version", "status", "links"],
    "properties": {
        "id": _TEXT,
        "model": _TEXT,
        "version": _TEXT,
        "status": {"type": "string", "enum": list(PUBLIC_STATES)},
        "priority": {"type": "string", "enum": ["interactive", "bulk"]},
        "position": {"type": "integer", "description": "Jobs before it in the queue, when it waits; an estimate"},
        "eta_s": {"type": "number", "description": "Seconds until it has likely run; an estimate"},
        "created_at": _MOMENT,
        "started_at": _MOMENT,
        "finished_at": _MOMENT,
        "deadline_at": _MOMENT,
        "attempts": {"type": "integer"},
        "cancel_requested": {"type": "boolean"},
        "error": {"type": "object", "properties": {"code": _TEXT, "message": _TEXT, "retryable": {"type": "boolean"}}},
        "batch": {"type": "object"},
        "links": {"type": "object", "additionalProperties": _TEXT},
    },
}
_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "code": {"type": "string", "examples": sorted(TITLES)[:5]},
        "detail": _TEXT,
        "hint": _TEXT,
        "instance": _TEXT,
        "job": _TEXT,
        "retryable": {"type": "boolean"},
        "request_id": _TEXT,
        "errors": {"type": "array", "items": {"type": "object", "properties": {"pointer": _TEXT, "detail": _TEXT}}},
    },
}


def document(app: FastAPI, models: Mapping[str, ModelEntry]) -> dict[str, Any]:
    """Built anew at each call, since models come and go."""
    described = copy.deepcopy(app.openapi())
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas |= {"Job": _JOB_SCHEMA, "Problem": _PROBLEM_SCHEMA}
    for path, item in described["paths"].items():
        for operation in item.values():
            operation["responses"] = _read_responses(path, operation["responses"])
    described["paths"] |= _generic_paths()
    for entry in models.values():
        described["paths"] |= _model_paths(entry, schemas)
    return described


def _read_responses(path: str, declared: dict[str, Any]) -> dict[str, Any]:
    success = next(status for status in declared if status.startswith("2"))
    content = {"application/json": {"schema": JOB_REF}} if path in ("/v1/jobs/{job_id}", "/v1/jobs/{job_id}/cancel") else None
    told = {"description": declared[success]["description"], **({"content": content} if content else {})}
    return {success: told, "default": _problem("Any refusal")}


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/problem+json": {"schema": PROBLEM_REF}}}


def _path_parameters(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def _generic_paths() -> dict[str, Any]:
    any_body = {"application/json": {}, "*/*": {"schema": {"type": "string", "format": "binary"}}}
    any_answer: dict[str, Any] = {"application/json": {}, "*/*": {}}
    paths = {}
    for names, tail in ((("model",), ""), (("model", "version"), "/versions/{version}")):
        own = _path_parameters(*names)
        paths[f"/v1/models/{{model}}{tail}/jobs"] = {"post": _submit(own, any_body, any_answer)}
        paths["/predictions/" + "/".join(f"{{{name}}}" for name in names)] = {"post": _predict(own, any_body, any_answer)}
    return paths


def _model_paths(entry: ModelEntry, schemas: dict[str, Any]) -> dict[str, Any]:
    paths = {}
    for version in entry.versions.values():
        body, answer = _contents(entry, version, schemas)
        if version is entry.default:
            paths[f"/v1/models/{entry.name}/jobs"] = {"post": _submit([], body, answer)}
            paths[f"/predictions/{entry.name}"] = {"post": _predict([], body, answer)}
        paths[f"/v1/models/{entry.name}/versions/{version.name}/jobs"] = {"post": _submit([], body, answer)}
        paths[f"/predictions/{entry.name}/{version.name}"] = {"post": _predict([], body, answer)}
    return paths


def _contents(entry: ModelEntry, version: VersionEntry, schemas: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Request and answer media types, the version's schemas put among the components."""
    if version.info is None:
        return {"application/json": {}}, {"application/json": {}}
    told: dict[str, dict[str, Any]] = {}
    for side, schema in (("input", version.info.input_schema), ("output", version.info.output_schema)):
        told[side] = {}
        if schema:
            name = f"{entry.name}.{version.name}.{side}"
            schemas[name] = rebased(schema, f"#/components/schemas/{name}")
            told[side] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    body = {media: told["input"] if media == "application/json" else {} for media in version.info.accepts}
    return body, {"application/json": told["output"]}


def rebased(schema: Any, base: str) -> Any:
    """The schema with its own `#/...` references pointing below `base`, where it now stands."""
    if isinstance(schema, dict):
        moved = {key: rebased(value, base) for key, value in schema.items()}
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref.startswith("#"):
            moved["$ref"] = base + ref[1:]
        return moved
    return [rebased(item, base) for item in schema] if isinstance(schema, list) else schema


def _submit(own: list[dict[str, Any]], body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "tags": ["jobs"],
        "summary": "Store a job",
        "parameters": [*own, *_PARAMETERS, _PREFER],
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The output, when Prefer: wait was met in time", "content": answer},
            "202": {"description": "Stored", "content": {"application/json": {"schema": JOB_REF}}},
            "default": _problem("Any refusal"),
        },
    }


def _predict(own: list[dict[str, Any]], body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "tags": ["predictions"],
        "summary": "Run and answer now",
        "parameters": [*own, *_PARAMETERS],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The output", "content": answer}, "default": _problem("Any refusal")},
    }
