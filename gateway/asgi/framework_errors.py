"""The web framework's own refusals as errors of ours, and the methods that a path takes."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from penstock.errors import BadRequest, NotFound
from penstock.gateway.asgi.problems import MethodNotAllowed
from penstock.gateway.asgi.wire import Scope
from penstock.gateway.telemetry.health import PROBES


def ours(error: Exception, request: Request, routers: Iterable[APIRouter]) -> Exception:
    """The framework's own refusals as errors of ours."""
    if isinstance(error, RequestValidationError):
        faults = [{"pointer": "/".join(map(str, fault["loc"])), "detail": fault["msg"]} for fault in error.errors()]
        return BadRequest("; ".join(f"{fault['pointer']}: {fault['detail']}" for fault in faults)[:500])
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 405:
        allow = ", ".join(allowed_methods(request.scope, routers))  # type: ignore[arg-type]
        return MethodNotAllowed(f"{request.method[:20]} is not a method of this path; it takes {allow}", allow=allow)
    if error.status_code == 404:
        return NotFound("there is no such path", hint="GET /openapi.json lists the routes.")
    return BadRequest(str(error.detail)[:200])


def allowed_methods(scope: Scope, routers: Iterable[APIRouter]) -> list[str]:
    """Every method that some route takes at this path; the framework tells only the first one's."""
    found: set[str] = set()
    for route in (route for router in routers for route in router.routes):
        if route.matches(scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found | ({"HEAD"} if scope["path"] in PROBES else set()))
