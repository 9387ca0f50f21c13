"""OpenAPI 3.0.1 of TorchServe's management: of all of it, and of one model's paths. Pure."""

from __future__ import annotations

from typing import Any

from penstock.extensions.torchserve.management.parameters import MOST_LISTED, MOST_WORKERS
from penstock.model_spec import MAX_BATCH_SIZE

# The last release of TorchServe, whose surface this is.
_TORCHSERVE = "0.12.0"
_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean", "default": False}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {"code": {"type": "integer"}, "type": _TEXT, "message": _TEXT},
}
_STATUS: dict[str, Any] = {"type": "object", "required": ["status"], "properties": {"status": _TEXT}}
_MODEL, _VERSION = "/models/{model_name}", "/models/{model_name}/{model_version}"


def management_description() -> dict[str, Any]:
    info = {
        "title": "TorchServe APIs",
        "description": "The management of models as TorchServe has it, answered by penstock",
        "version": _TORCHSERVE,
    }
    return {"openapi": "3.0.1", "info": info, "paths": _paths()}


def model_description(model: str) -> dict[str, Any]:
    """The paths of one model, with its name in their title."""
    info = {"title": f"RESTful Management API for: {model}", "version": _TORCHSERVE}
    return {"openapi": "3.0.1", "info": info, "paths": {path: item for path, item in _paths().items() if _MODEL in path}}


def _paths() -> dict[str, Any]:
    return {
        "/models": {
            "get": _operation("listModels", "The models, by name", *_page(), statuses=(200,)),
            "post": _operation(
                "registerModel", "Register a version", *_registered(), statuses=(200, 202, 206, 400, 404, 405, 409, 500)
            ),
        },
        _MODEL: _model_item(""),
        _VERSION: _model_item("version_"),
        f"{_VERSION}/set-default": {
            "put": _operation("setDefault", "Have callers who name no version get this one", statuses=(200, 404, 409))
        },
        "/v1/models/{model_name}": {
            "get": _operation("readiness", "Whether a worker has loaded the model", statuses=(200, 404))
        },
        "/token": {"get": _operation("renewToken", "A new token, in the key file", _query("type", _TEXT), statuses=(200, 400))},
        "/ping": {"get": _operation("ping", "Whether every declared model can serve", statuses=(200, 500))},
        "/api-description": {"get": _operation("apiDescription", "This document", statuses=(200,))},
    }


def _model_item(prefix: str) -> dict[str, Any]:
    return {
        "get": _operation(f"{prefix}describeModel", "Describe it", _query("customized", _FLAG), statuses=(200, 404, 503)),
        "put": _operation(f"{prefix}setAutoScale", "Set the number of workers", *_scaled(), statuses=(200, 202, 206, 400, 404)),
        "delete": _operation(f"{prefix}unregisterModel", "Unregister it", statuses=(200, 403, 404, 405, 408)),
    }


def _operation(name: str, about: str, *parameters: dict[str, Any], statuses: tuple[int, ...]) -> dict[str, Any]:
    return {
        "operationId": name,
        "description": about,
        **({"parameters": list(parameters)} if parameters else {}),
        "responses": {str(status): _response(status) for status in statuses},
    }


def _response(status: int) -> dict[str, Any]:
    schema = _STATUS if status < 400 else _ERROR
    return {"description": "OK" if status < 400 else "Refused", "content": {"application/json": {"schema": schema}}}


def _query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"in": "query", "name": name, "required": required, "schema": schema}


def _page() -> list[dict[str, Any]]:
    limit = {"type": "integer", "default": MOST_LISTED, "maximum": MOST_LISTED}
    return [_query("limit", limit), _query("next_page_token", _TEXT)]


def _workers(name: str) -> dict[str, Any]:
    return _query(name, {"type": "integer", "minimum": 0, "maximum": MOST_WORKERS})


def _batching() -> list[dict[str, Any]]:
    size = {"type": "integer", "minimum": 1, "maximum": MAX_BATCH_SIZE}
    return [_query("batch_size", size), _query("max_batch_delay", {"type": "integer", "minimum": 0})]


def _registered() -> list[dict[str, Any]]:
    seconds = {"type": "integer", "minimum": 1}
    return [
        _query("url", _TEXT, required=True),
        *(_query(name, _TEXT) for name in ("model_name", "handler", "runtime")),
        *_batching(),
        *(_query(name, seconds) for name in ("response_timeout", "startup_timeout")),
        _workers("initial_workers"),
        _query("synchronous", {"type": "boolean", "default": True}),
    ]


def _scaled() -> list[dict[str, Any]]:
    return [_workers("min_worker"), _workers("max_worker"), _query("synchronous", _FLAG), *_batching()]
