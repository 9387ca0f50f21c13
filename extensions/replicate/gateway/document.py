"""The OpenAPI document of a model as Cog's container serves it, from which clients read the input and the output. Pure."""

from __future__ import annotations

from typing import Any

from penstock.gateway.models.registry import VersionEntry
from penstock.gateway.models.views import rebased

# Clients read the schemas by the rules of this version of Cog.
COG_VERSION = "0.16.0"
_TEXT = {"type": "string"}
_MOMENT = {"type": "string", "format": "date-time"}
_REQUEST = {"$ref": "#/components/schemas/PredictionRequest"}
_RESPONSE = {"$ref": "#/components/schemas/PredictionResponse"}
_ID = {"name": "prediction_id", "in": "path", "required": True, "schema": _TEXT}
_PREFER = {"name": "prefer", "in": "header", "required": False, "schema": _TEXT}
_REQUEST_MEMBERS = {
    "id": {"title": "Id", **_TEXT},
    "input": {"$ref": "#/components/schemas/Input"},
}
_RESPONSE_MEMBERS = {
    **_REQUEST_MEMBERS,
    "output": {"$ref": "#/components/schemas/Output"},
    "status": {"$ref": "#/components/schemas/Status"},
    "logs": {"title": "Logs", **_TEXT, "default": ""},
    "error": {"title": "Error", **_TEXT},
    "metrics": {"title": "Metrics", "type": "object"},
    "created_at": {"title": "Created At", **_MOMENT},
    "started_at": {"title": "Started At", **_MOMENT},
    "completed_at": {"title": "Completed At", **_MOMENT},
}


def cog_document(version: VersionEntry) -> dict[str, Any]:
    """The document, with the schemas of input and output where Cog's readers look for them."""
    info = version.info
    given = _component("Input", info.input_schema if info is not None else None)
    return {
        "openapi": "3.0.2",
        "info": {"title": "Cog", "version": "0.1.0"},
        "paths": _paths(),
        "components": {
            "schemas": {
                "Input": _ordered(given),
                "Output": _component("Output", info.output_schema if info is not None else None),
                "PredictionRequest": {"title": "PredictionRequest", "type": "object", "properties": _REQUEST_MEMBERS},
                "PredictionResponse": {"title": "PredictionResponse", "type": "object", "properties": _RESPONSE_MEMBERS},
                "Status": {**_TEXT, "enum": ["starting", "processing", "succeeded", "canceled", "failed"]},
            }
        },
    }


def _paths() -> dict[str, Any]:
    body = {"content": {"application/json": {"schema": _REQUEST}}}
    made = {
        "200": {"description": "Its end", "content": {"application/json": {"schema": _RESPONSE}}},
        "202": {"description": "Stored", "content": {"application/json": {"schema": _RESPONSE}}},
    }
    read = {"200": {"description": "Successful Response", "content": {"application/json": {"schema": {}}}}}
    predict = {"summary": "Predict", "parameters": [_PREFER], "requestBody": body, "responses": made}
    return {
        "/": {"get": {"summary": "Root", "responses": read}},
        "/health-check": {"get": {"summary": "Healthcheck", "responses": read}},
        "/predictions": {"post": predict},
        "/predictions/{prediction_id}": {"put": {**predict, "summary": "Predict Idempotent", "parameters": [_ID, _PREFER]}},
        "/predictions/{prediction_id}/cancel": {"post": {"summary": "Cancel", "parameters": [_ID], "responses": read}},
    }


def _component(name: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    moved: dict[str, Any] = rebased(schema or {}, f"#/components/schemas/{name}")
    ref = str((schema or {}).get("$ref", ""))
    if ref.startswith("#/$defs/"):
        # Readers look for `properties` at the top.
        moved = {**moved["$defs"][ref.rpartition("/")[2]], "$defs": moved["$defs"]}
    return {"title": name, **moved}


def _ordered(given: dict[str, Any]) -> dict[str, Any]:
    """The schema with the index of each member, by which Cog's readers lay out a form. A predictor's schema has it."""
    members = given.get("properties")
    if not isinstance(members, dict):
        return given
    ordered = {name: {"x-order": index, **own} for index, (name, own) in enumerate(members.items()) if isinstance(own, dict)}
    return {**given, "properties": {**members, **ordered}}
