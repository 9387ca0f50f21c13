"""Which paths are TorchServe's management, and what each asks for. Pure; a slash at the end is tolerated."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from penstock.extensions.torchserve.gateway.errors import no_method, no_path
from penstock.extensions.torchserve.gateway.routes import is_management


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
# What anybody may ask for: it says nothing of models. Without the slash at the end.
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
