"""The paths of TorchServe's management: what each asks for, and the OpenAPI documents of them. Pure.

A slash at the end of a path is tolerated.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from penstock.extensions.torchserve.gateway.errors import no_method, no_path
from penstock.extensions.torchserve.gateway.routes import is_management
from penstock.extensions.torchserve.management.registering import MOST_LISTED, MOST_WORKERS
from penstock.model_spec import MAX_BATCH_SIZE


class Action(StrEnum):
    API_DESCRIPTION = "api-description"
    PING = "ping"
    TOKEN = "token"
    LIST = "list"
    REGISTER = "register"
    DESCRIBE = "describe"
    SCALE = "scale"
    UNREGISTER = "unregister"
    DESCRIPTION = "description"
    SET_DEFAULT = "set-default"
    READINESS = "readiness"
    LIST_WORKFLOWS = "list-workflows"
    REGISTER_WORKFLOW = "register-workflow"
    DESCRIBE_WORKFLOW = "describe-workflow"
    UNREGISTER_WORKFLOW = "unregister-workflow"


# What the audit log has.
CHANGES = frozenset(
    {
        Action.REGISTER,
        Action.SCALE,
        Action.UNREGISTER,
        Action.SET_DEFAULT,
        Action.REGISTER_WORKFLOW,
        Action.UNREGISTER_WORKFLOW,
    }
)
# Open to every caller, because these paths say nothing of models. Without the slash at the end.
PUBLIC_PATHS = frozenset({"", "/", "/ping", "/api-description"})
# By the path's form, what each method does.
_FORMS: dict[str, dict[str, Action]] = {
    "/": {"OPTIONS": Action.API_DESCRIPTION},
    "/api-description": {"GET": Action.API_DESCRIPTION},
    "/ping": {"GET": Action.PING},
    "/token": {"GET": Action.TOKEN},
    "/models": {"GET": Action.LIST, "POST": Action.REGISTER},
    "/models/{model}": {
        "GET": Action.DESCRIBE,
        "PUT": Action.SCALE,
        "DELETE": Action.UNREGISTER,
        "OPTIONS": Action.DESCRIPTION,
    },
    "/models/{model}/{version}": {"GET": Action.DESCRIBE, "PUT": Action.SCALE, "DELETE": Action.UNREGISTER},
    "/models/{model}/{version}/set-default": {"PUT": Action.SET_DEFAULT},
    "/v1/models/{model}": {"GET": Action.READINESS},
    "/workflows": {"GET": Action.LIST_WORKFLOWS, "POST": Action.REGISTER_WORKFLOW},
    "/workflows/{model}": {"GET": Action.DESCRIBE_WORKFLOW, "DELETE": Action.UNREGISTER_WORKFLOW},
}

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


class ManagementTarget(NamedTuple):
    """`route` is the path's template, as metrics show it."""

    action: Action
    route: str
    model: str = ""
    version: str = ""


def management_target(method: str, path: str) -> ManagementTarget:
    """Raises `TorchServeError`: 404 for a path that is none of them, 405 for another method of one that is. HEAD is GET."""
    parts = path.strip("/").split("/") if path.strip("/") else []
    form, model, version = _form(parts)
    methods = _FORMS.get(form)
    if methods is None or "" in parts:
        raise no_path()
    action = methods.get("GET" if method == "HEAD" else method)
    if action is None:
        raise no_method()
    return ManagementTarget(action, form, model, version)


def is_served_beside(path: str) -> bool:
    """Whether a gateway with one listener for all serves this path as management.

    `/models/{model}/invoke` and what is below `/wfpredict` are predictions.
    """
    return is_management(path) and not (path.startswith("/wfpredict") or path.rstrip("/").endswith("/invoke"))


def _form(parts: list[str]) -> tuple[str, str, str]:
    """The template of a path, and the model and version that stand in it."""
    if parts[:2] == ["v1", "models"] and len(parts) == 3:
        return "/v1/models/{model}", parts[2], ""
    if parts[:1] == ["workflows"] and len(parts) == 2:
        return "/workflows/{model}", parts[1], ""
    if parts[:1] == ["models"] and len(parts) > 1:
        names = ["{model}", "{version}", *parts[3:]][: len(parts) - 1]
        return "/".join(["/models", *names]), parts[1], parts[2] if len(parts) > 2 else ""
    return f"/{'/'.join(parts)}", "", ""


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
