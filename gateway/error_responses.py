"""How a failed request is answered: the framework's refusals as our errors, the problem body, and the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from penstock.errors import BadRequest, NotFound, PenstockError, StoreUnavailable
from penstock.gateway.asgi import problems
from penstock.gateway.asgi.negotiation import caller_trace_in
from penstock.gateway.asgi.problems import EndedWithoutOutput, ForeignRefusal, MethodNotAllowed, ProblemResponse
from penstock.gateway.asgi.wire import WORDING, Scope, drop_frames
from penstock.gateway.extending import Wording

log = structlog.get_logger(__name__)


def problem_of(error: Exception, scope: Scope, given_id: bytes | None, words: Sequence[Wording]) -> ProblemResponse:
    """The response to a request that failed with `error`; `given_id` is the caller's own X-Request-Id. `words`:
    how other protocols word a refusal.

    Logs what an operator must know: an unreachable store, and bugs with their traceback.
    """
    request_id, instance = problems.request_id_of(given_id), scope["path"][:200]
    trace = scope.get("trace") or caller_trace_in(scope["headers"])
    trace_id = trace.trace_id if trace else ""
    shown = error if isinstance(error, PenstockError) else problems.internal_error()
    problem = problems.render(shown, request_id=request_id, instance=instance, trace=trace)
    # D41: clients of a foreign protocol get the same refusal in that protocol's form.
    wording = scope.get(WORDING) or next((one.worded for one in words if one.speaks(instance)), None)
    problem = problem if wording is None else wording(problem, shown)
    if isinstance(error, StoreUnavailable):
        log.warning("store_unavailable", request_id=request_id, trace_id=trace_id, path=instance, reason=error.message)
    if problem.status == 500 and not isinstance(error, (EndedWithoutOutput, ForeignRefusal)):
        log.error("request_failed", request_id=request_id, trace_id=trace_id, path=instance, exc_info=error)
    drop_frames(error)
    return problem


def from_framework(error: Exception, request: Request, routers: Iterable[APIRouter]) -> Exception:
    """The web framework's own refusals as errors of ours; every other error unchanged."""
    if isinstance(error, RequestValidationError):
        faults = [{"pointer": "/".join(map(str, fault["loc"])), "detail": fault["msg"]} for fault in error.errors()]
        return BadRequest("; ".join(f"{fault['pointer']}: {fault['detail']}" for fault in faults)[:500])
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 405:
        allow = ", ".join(methods_of_path(request.scope, routers))  # type: ignore[arg-type]
        return MethodNotAllowed(f"{request.method[:20]} is not a method of this path; it takes {allow}", allow=allow)
    if error.status_code == 404:
        return NotFound("there is no such path", hint="GET /openapi.json lists the routes.")
    return BadRequest(str(error.detail)[:200])


def methods_of_path(scope: Scope, routers: Iterable[APIRouter]) -> list[str]:
    """Every method that the routes of this path accept. The framework's own 405 names only the first route's.

    If a route has exactly this path, such as /v1/jobs/events, routes with a parameter as last part do not count.
    """
    routes = [route for router in routers for route in router.routes if route.matches(scope)[0] is not Match.NONE]
    named = [route for route in routes if getattr(route, "path", "") == scope["path"]]
    methods = {method for route in named or routes for method in getattr(route, "methods", None) or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))
