"""The OpenAPI document: FastAPI describes its own routes, this module the submit routes with each model's schemas."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from penstock.access import ANY_HEADER
from penstock.gateway.asgi.problems import titles
from penstock.gateway.auth.rules import SUBMIT, RouteRules, security
from penstock.gateway.jobs.schemas import ANSWER_PARAMETERS, JOB_PARAMETERS, JOB_SCHEMA, TIMELINE_SCHEMA
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.models.views import rebased
from penstock.inputs.form import form_fields, is_file_schema
from penstock.model_spec import VersionInfo

PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}
JOB_REF = {"$ref": "#/components/schemas/Job"}
_HEADERS = [
    {
        "name": "traceparent",
        "in": "header",
        "description": "W3C trace context; the response has it too",
        "schema": {"type": "string"},
    },
    {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": 255}},
]
_PREFER = {"name": "Prefer", "in": "header", "description": "wait=N, respond-async", "schema": {"type": "string"}}
_NO_RESULT = "The job ended without an output; the code says how"
_TEXT = {"type": "string"}
_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "code": _TEXT,
        "detail": _TEXT,
        "hint": _TEXT,
        "instance": _TEXT,
        "job": _TEXT,
        "retryable": {"type": "boolean"},
        "request_id": _TEXT,
        "trace_id": _TEXT,
        "errors": {"type": "array", "items": {"type": "object", "properties": {"pointer": _TEXT, "detail": _TEXT}}},
    },
}
_COUNT = {"type": "integer", "minimum": 0}
_AGE = {"type": "number", "minimum": 0, "description": "Seconds that the oldest waiting job has waited; 0 if none waits"}
_BACKLOG = {"type": ["number", "null"], "description": "Seconds until the waiting jobs have run; null while no rate is known"}
_QUEUE_SCHEMA = {
    "type": "object",
    "required": ["model", "depth", "oldest_age_s", "backlog_s", "in_flight", "priorities"],
    "properties": {
        "model": _TEXT,
        "depth": _COUNT,
        "oldest_age_s": _AGE,
        "backlog_s": _BACKLOG,
        "in_flight": {**_COUNT, "description": "Jobs leased to workers"},
        "delayed": {**_COUNT, "description": "Jobs that wait for their start or for their next attempt"},
        "ready_slots": _COUNT,
        "rate_per_s": {"type": ["number", "null"], "description": "Jobs that workers end per second; null if not known"},
        "priorities": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"depth": _COUNT, "oldest_age_s": _AGE, "backlog_s": _BACKLOG},
            },
        },
    },
}
_QUEUE_REF = {"$ref": "#/components/schemas/Queue"}
_QUEUE_LIST = {"type": "object", "properties": {"data": {"type": "array", "items": _QUEUE_REF}}}
_WORK = {"type": "number", "minimum": 0, "description": "Seconds that one worker would work on all that waits, is due or runs"}
_SCALING = {
    "type": "object",
    "required": ["work_s", "data"],
    "properties": {
        "work_s": {**_WORK, "description": "The sum over the models; a number at all times"},
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "model": _TEXT,
                    "work_s": _WORK,
                    "depth": _COUNT,
                    "due": {**_COUNT, "description": "Delayed jobs whose time has come"},
                    "in_flight": _COUNT,
                    "ready_slots": _COUNT,
                },
            },
        },
    },
}
_CANCELLED = {
    "type": "object",
    "required": ["cancelled", "requested", "has_more"],
    "properties": {
        "cancelled": {**_COUNT, "description": "Jobs that waited and have ended"},
        "requested": {**_COUNT, "description": "Running jobs that end cancelled with their batch"},
        "has_more": {"type": "boolean"},
        "next_after": {"type": "string", "description": "Give it back as `after` for the jobs that were not looked at"},
    },
}
_FILE = {"schema": {"type": "string", "format": "binary"}}
_JOB_PATH = "/v1/jobs/{job_id}"
_JOB_CONTENT = {"application/json": {"schema": JOB_REF}}
# Media types and schemas of the routes that answer with more than JSON of no fixed schema.
_READ_CONTENT: dict[str, dict[str, Any]] = {
    _JOB_PATH: _JOB_CONTENT,
    f"{_JOB_PATH}/cancel": _JOB_CONTENT,
    "/v1/jobs:cancel": {"application/json": {"schema": _CANCELLED}},
    "/v1/runs:cancel": {"application/json": {"schema": _CANCELLED}},
    f"{_JOB_PATH}/replay": _JOB_CONTENT,
    f"{_JOB_PATH}/timeline": {"application/json": {"schema": {"$ref": "#/components/schemas/Timeline"}}},
    f"{_JOB_PATH}/result": {"*/*": {}},
    f"{_JOB_PATH}/traceback": {"text/plain": {}},
    f"{_JOB_PATH}/result/parts/{{place}}": {"*/*": {}},
    f"{_JOB_PATH}/events": {"text/event-stream": {}, "application/x-ndjson": {}},
    "/v1/jobs/events": {"text/event-stream": {}},
    "/v1/scaling": {"application/json": {"schema": _SCALING}},
    "/v1/queues": {"application/json": {"schema": _QUEUE_LIST}},
    "/v1/queues/{model}": {"application/json": {"schema": _QUEUE_REF}},
    "/metrics": {"text/plain": {}},
    "/problems/{code}": {"text/plain": {}, "application/json": {}},
}


def document(app: FastAPI, models: Mapping[str, ModelEntry], *, keyed: bool = False) -> dict[str, Any]:
    """Built for each call, because models come and go. `keyed`: with the roles that each route requires."""
    described = copy.deepcopy(app.openapi())
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas |= {"Job": JOB_SCHEMA, "Problem": _problem_schema(), "Timeline": TIMELINE_SCHEMA, "Queue": _QUEUE_SCHEMA}
    for path, item in described["paths"].items():
        for operation in item.values():
            operation["responses"] = _read_responses(path, operation["responses"])
    described["paths"] |= _generic_paths()
    if keyed:
        _add_roles(described, app.state.rules)
    for entry in models.values():
        own = _model_paths(entry, schemas) | _batch_paths(entry, described["paths"])
        for operation in (operation for item in own.values() for operation in item.values() if keyed):
            operation["security"] = security(SUBMIT)
        described["paths"] |= own
    return described


def _problem_schema() -> dict[str, Any]:
    """The schema of a problem, with example codes."""
    code = {**_TEXT, "examples": sorted(titles())[:5]}
    return {**_PROBLEM_SCHEMA, "properties": {**_PROBLEM_SCHEMA["properties"], "code": code}}


def _add_roles(described: dict[str, Any], rules: RouteRules) -> None:
    described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "ID.SECRET"}}
    for path, item in described["paths"].items():
        for method, operation in item.items():
            operation["security"] = security(rules.roles_of(method.upper(), path))


def _read_responses(path: str, declared: dict[str, Any]) -> dict[str, Any]:
    success = next(status for status in declared if status.startswith("2"))
    content = _READ_CONTENT.get(path, {"application/json": {}})
    responses = {
        success: {"description": declared[success]["description"], "content": content},
        "default": problem("Any refusal"),
    }
    if path.startswith(f"{_JOB_PATH}/result"):
        responses["202"] = {"description": "The job has not ended yet", "content": _JOB_CONTENT}
        responses["206"] = {"description": "The bytes that Range asks for", "content": content}
        responses["304"] = {"description": "If-None-Match names this result"}
        responses["416"] = problem("Range begins behind the end of the output")
        responses["409"] = problem(_NO_RESULT)
    if path == _JOB_PATH and success == "200":
        responses["304"] = {"description": "Unchanged since If-None-Match"}
    return responses


def problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/problem+json": {"schema": PROBLEM_REF}}}


def path_parameters(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def _generic_paths() -> dict[str, Any]:
    any_body = {"application/json": {}, "*/*": {"schema": {"type": "string", "format": "binary"}}}
    any_answer: dict[str, Any] = {"application/json": {}, "*/*": {}}
    paths = {}
    for names, tail in ((("model",), ""), (("model", "version"), "/versions/{version}")):
        own = path_parameters(*names)
        paths[f"/v1/models/{{model}}{tail}/jobs"] = {"post": _submit(own, any_body, any_answer)}
        named = "/".join(f"{{{name}}}" for name in names)
        paths[f"/predictions/{named}"] = {"post": _predict(own, any_body, any_answer)}
        paths[f"/explanations/{named}"] = {"post": _predict(own, any_body, any_answer, summary="Explain an answer")}
    return paths


def _said(entry: ModelEntry) -> list[dict[str, Any]]:
    """The parameters that the model's settings name."""
    named = [(name, "query") for name in entry.info.query] + [
        (name, "header") for name in entry.info.request_headers if name != ANY_HEADER
    ]
    return [{"name": name, "in": place, "schema": _TEXT} for name, place in named]


def _model_paths(entry: ModelEntry, schemas: dict[str, Any]) -> dict[str, Any]:
    paths = {}
    said = _said(entry)
    for version in entry.versions.values():
        body, answer = _contents(entry, version, schemas)
        if version is entry.default:
            paths[f"/v1/models/{entry.name}/jobs"] = {"post": _submit(said, body, answer)}
            paths[f"/predictions/{entry.name}"] = {"post": _predict(said, body, answer | _streamed(version))}
        paths[f"/v1/models/{entry.name}/versions/{version.name}/jobs"] = {"post": _submit(said, body, answer)}
        paths[f"/predictions/{entry.name}/{version.name}"] = {"post": _predict(said, body, answer | _streamed(version))}
    return paths


def _batch_paths(entry: ModelEntry, paths: dict[str, Any]) -> dict[str, Any]:
    """The routes of many inputs in one request, with the parameters and the input of this model."""
    generic = paths["/v1/models/{model}/jobs:batch"]["post"]
    options = [parameter for parameter in generic["parameters"] if parameter["in"] != "path"]
    batch_paths = {}
    for version in entry.versions.values():
        operation = {name: value for name, value in generic.items() if name != "operationId"}
        operation |= {
            "parameters": [*_said(entry), *options],
            "requestBody": _many_inputs(entry, version, generic["requestBody"]),
        }
        batch_paths[f"/v1/models/{entry.name}/versions/{version.name}/jobs:batch"] = {"post": operation}
        if version is entry.default:
            batch_paths[f"/v1/models/{entry.name}/jobs:batch"] = {"post": copy.deepcopy(operation)}
    return batch_paths


def _many_inputs(entry: ModelEntry, version: VersionEntry, generic: dict[str, Any]) -> dict[str, Any]:
    body = copy.deepcopy(generic)
    if version.info is not None and version.info.input_schema:
        items = {"$ref": f"#/components/schemas/{entry.name}.{version.name}.input"}
        body["content"]["application/json"]["schema"] |= {"items": items}
    return body


def _contents(entry: ModelEntry, version: VersionEntry, schemas: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Media types of request and response; adds the version's schemas to the components."""
    if version.info is None:
        return {"*/*": {}}, {"*/*": {}}
    content: dict[str, dict[str, Any]] = {}
    for side, schema in (("input", version.info.input_schema), ("output", version.info.output_schema)):
        content[side] = {}
        if schema:
            name = f"{entry.name}.{version.name}.{side}"
            schemas[name] = rebased(schema, f"#/components/schemas/{name}")
            content[side] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    body = {media: content["input"] if media == "application/json" else {} for media in version.info.accepts}
    form = _form_schema(version.info.input_schema)
    if _takes_forms(version.info.input_schema) and "multipart/form-data" not in body:
        name = f"{entry.name}.{version.name}.form"
        schemas[name] = rebased(form, f"#/components/schemas/{name}")
        body["multipart/form-data"] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    return body, _answers(version.info, content["output"])


def _answers(info: VersionInfo, output: dict[str, Any]) -> dict[str, Any]:
    """The media types of the output. Without a handler's annotation the output may be bytes or a bundle of files."""
    content = {media: output if media == "application/json" else _FILE for media in info.answers}
    if not content and output:
        return {"application/json": output}
    return content or {"application/json": {}, "*/*": {}, "multipart/form-data": {}, "multipart/mixed": {}}


def _takes_forms(schema: dict[str, Any] | None) -> bool:
    """Whether a form can be the whole input: it has fields, or it is a file. False without a schema."""
    return bool(schema) and (form_fields(schema) is not None or is_file_schema(schema))


def _streamed(version: VersionEntry) -> dict[str, Any]:
    """The other answers to a prediction of a streaming model: the events of its job."""
    streams = version.info is not None and version.info.streams
    return {"text/event-stream": {}, "application/x-ndjson": {}} if streams else {}


def _form_schema(schema: Any) -> Any:
    """The schema of the same input as a form, where files are parts of their own instead of base64."""
    if isinstance(schema, dict):
        if schema.get("contentEncoding") == "base64":
            return {name: own for name, own in schema.items() if name != "contentEncoding"} | {"format": "binary"}
        return {key: _form_schema(value) for key, value in schema.items()}
    return [_form_schema(item) for item in schema] if isinstance(schema, list) else schema


def _submit(own: list[dict[str, Any]], body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "tags": ["jobs"],
        "summary": "Store a job",
        "parameters": [*own, *JOB_PARAMETERS, *_HEADERS, _PREFER],
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The output, if the job ended within the seconds of Prefer: wait", "content": answer},
            "202": {"description": "Stored", "content": _JOB_CONTENT},
            "409": problem(_NO_RESULT),
            "default": problem("Any refusal"),
        },
    }


def _predict(
    own: list[dict[str, Any]],
    body: dict[str, Any],
    answer: dict[str, Any],
    *,
    summary: str = "Answer with the output",
) -> dict[str, Any]:
    return {
        "tags": ["predictions"],
        "summary": summary,
        "parameters": [*own, *ANSWER_PARAMETERS, *_HEADERS],
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The output", "content": answer}, "default": problem("Any refusal")},
    }
