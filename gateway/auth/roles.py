"""Who may call what: one table from route to role, and the caller that a request comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from penstock.access import Role
from penstock.errors import RateLimited, WrongRole
from penstock.gateway.asgi.negotiation import refuse_unknown

MAX_WAITING = 64
ANY = tuple(Role)
_SUBMIT = (Role.SUBMIT,)
_SEE = (Role.READ, Role.MANAGE)
_STOP = (Role.SUBMIT, Role.MANAGE)
_MANAGE = (Role.MANAGE,)

# One of the roles suffices. A route that is not listed takes the manage role, so that forgetting one opens nothing.
ROLES: dict[tuple[str, str], tuple[Role, ...]] = {
    ("POST", "/predictions/{model}"): _SUBMIT,
    ("POST", "/predictions/{model}/{version}"): _SUBMIT,
    ("POST", "/explanations/{model}"): _SUBMIT,
    ("POST", "/explanations/{model}/{version}"): _SUBMIT,
    ("POST", "/v1/models/{model}/jobs"): _SUBMIT,
    ("POST", "/v1/models/{model}/versions/{version}/jobs"): _SUBMIT,
    ("GET", "/v1/jobs"): _SEE,
    ("GET", "/v1/jobs/{job_id}"): _SEE,
    ("GET", "/v1/jobs/{job_id}/result"): _SEE,
    ("GET", "/v1/jobs/{job_id}/events"): _SEE,
    ("GET", "/v1/jobs/{job_id}/timeline"): _SEE,
    ("DELETE", "/v1/jobs/{job_id}"): _STOP,
    ("POST", "/v1/jobs/{job_id}/cancel"): _STOP,
    ("POST", "/v1/jobs/{job_id}/replay"): _STOP,
    ("POST", "/v1/embeddings"): _SUBMIT,
    ("POST", "/v1/files"): _SUBMIT,
    ("GET", "/v1/files"): _SEE,
    ("GET", "/v1/files/{file_id}"): _SEE,
    ("GET", "/v1/files/{file_id}/content"): _SEE,
    ("DELETE", "/v1/files/{file_id}"): _STOP,
    ("POST", "/v1/batches"): _SUBMIT,
    ("GET", "/v1/batches"): _SEE,
    ("GET", "/v1/batches/{batch_id}"): _SEE,
    ("POST", "/v1/batches/{batch_id}/cancel"): _STOP,
    ("POST", "/v1/runs"): _SUBMIT,
    ("GET", "/v1/runs"): _SEE,
    ("GET", "/v1/runs/{run_id}"): _SEE,
    ("POST", "/v1/runs/{run_id}/cancel"): _STOP,
    ("GET", "/v1/queues"): _SEE,
    ("GET", "/v1/queues/{model}"): _SEE,
    ("GET", "/v1/models"): ANY,
    ("GET", "/v1/models/{model}"): ANY,
    ("GET", "/openapi.json"): ANY,
    ("POST", "/v1/models/{model}/versions"): _MANAGE,
    ("DELETE", "/v1/models/{model}/versions/{version}"): _MANAGE,
    ("PUT", "/v1/models/{model}/default"): _MANAGE,
    ("DELETE", "/v1/models/{model}/rollout"): _MANAGE,
    ("POST", "/v1/models/{model}/profile"): _MANAGE,
    ("GET", "/v1/models/{model}/profile"): _MANAGE,
    ("GET", "/v1/workers"): _MANAGE,
    ("GET", "/metrics"): _MANAGE,
    ("GET", "/"): _SEE,
    ("GET", "/ui/live"): _SEE,
    ("GET", "/ui/models/{model}"): _SEE,
    ("GET", "/ui/models/{model}/series"): _SEE,
    ("GET", "/ui/workers"): _MANAGE,
    ("GET", "/ui/jobs"): _SEE,
    ("GET", "/ui/jobs/{job_id}"): _SEE,
    ("GET", "/ui/jobs/{job_id}/input"): _SEE,
    ("GET", "/ui/jobs/{job_id}/output"): _SEE,
    ("POST", "/ui/jobs/{job_id}/cancel"): _STOP,
    ("POST", "/ui/jobs/{job_id}/replay"): _STOP,
    ("GET", "/ui/runs"): _SEE,
    ("GET", "/ui/runs/{run_id}"): _SEE,
    ("GET", "/ui/runs/{run_id}/output"): _SEE,
    ("GET", "/ui/runs/{run_id}/errors"): _SEE,
    ("POST", "/ui/runs/{run_id}/cancel"): _STOP,
    ("GET", "/ui/failed"): _SEE,
    ("POST", "/ui/failed/replay"): _STOP,
    ("GET", "/ui/api"): _SEE,
}
# Probes, and the page that an error's `type` names. They tell nothing of models, jobs or workers to a caller without a key.
PUBLIC = frozenset({"/livez", "/readyz", "/startupz", "/ping", "/v2/health/live", "/v2/health/ready", "/problems/{code}"})
# Of the dashboard: the way in and out, and files that are the same in every installation.
PUBLIC_PAGES = frozenset({"/ui/login", "/ui/logout", "/ui/static/{name}"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a request comes from. `owner` is whose jobs it makes; `max_open_jobs` None: a share of the model's queue."""

    owner: str = ""
    roles: frozenset[Role] = frozenset()
    key_id: str = ""
    max_open_jobs: int | None = None

    def sees(self, owner: str) -> bool:
        return owner == self.owner or Role.MANAGE in self.roles

    def quota(self, max_queue_depth: int) -> int:
        """How many jobs of a model its owner may have under way; 0 for no limit but the queue's own."""
        return (self.max_open_jobs or max(1, max_queue_depth // 4)) if self.key_id else 0


class WaitingResponses:
    """How many answers are held back for each key: long polls and event streams."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def check(self, caller: Caller) -> None:
        """Raises `RateLimited` when the key has as many as it may; a gateway without keys knows no such limit."""
        if caller.key_id and self._open[caller.key_id] >= MAX_WAITING:
            raise RateLimited(
                f"this API key has {MAX_WAITING} long polls and event streams open", retry_after_s=1.0, hint="End some first."
            )

    @contextmanager
    def open(self, caller: Caller) -> Iterator[None]:
        self.check(caller)
        self._open[caller.key_id] += 1
        try:
            yield
        finally:
            self._open[caller.key_id] -= 1


# Without keys everybody on this machine is the one who runs the gateway.
EVERYBODY = Caller(roles=frozenset(Role))
NOBODY = Caller()


def roles_of(method: str, route: str) -> tuple[Role, ...]:
    """Those that may; empty for a public route."""
    return () if route in PUBLIC or route in PUBLIC_PAGES else ROLES.get((method, route), _MANAGE)


def is_public(path: str) -> bool:
    return path in PUBLIC or path in PUBLIC_PAGES or path.startswith(("/problems/", "/ui/static/"))


def require_role(caller: Caller, method: str, route: str) -> None:
    """Raises `WrongRole` unless the caller's key is for this route."""
    roles = roles_of(method, route)
    if roles and caller.roles.isdisjoint(roles):
        raise WrongRole(
            f"this API key may not do that: it takes the role {' or '.join(roles)}",
            hint="Use a key with that role; `penstock keys new NAME --role ...` makes one.",
        )


async def authorize(request: Request) -> Caller:
    """The caller of a request whose key is for its route, and whose query the route knows; every route depends on this."""
    caller: Caller = request.scope["caller"]
    route = request.scope["route"]
    require_role(caller, request.method, route.path)
    if route.path.startswith("/v1/"):
        # A misspelt filter or wait must not pass for none. Probes take anything: some of their callers add what they like.
        refuse_unknown(request.query_params, [field.alias for field in route.dependant.query_params])
    return caller


CallerParam = Annotated[Caller, Depends(authorize)]


def security_of(method: str, route: str) -> list[dict[str, Any]]:
    """The route's line in the OpenAPI document: the roles of which one is enough, in the words of OpenAPI 3.1."""
    return [{"key": [role.value]} for role in roles_of(method, route)]
