"""Who may call what: one table from route to roles, and the limit on waiting responses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

from fastapi import Depends, Request

from penstock.access import Role
from penstock.errors import WrongRole
from penstock.gateway.asgi.negotiation import refuse_unknown
from penstock.gateway.auth.keys import Caller, Shares

# D15: docs/design/gateway.md
ANY = tuple(Role)
_SUBMIT = (Role.SUBMIT,)
_SEE = (Role.READ, Role.MANAGE)
_STOP = (Role.SUBMIT, Role.MANAGE)
_MANAGE = (Role.MANAGE,)

# What the Open Inference Protocol's clients may call and penstock refuses by name.
UNSERVED = (
    *(("GET", f"/v2/models{path}/stats") for path in ("", "/{model}", "/{model}/versions/{version}")),
    *((method, path) for path in ("/v2/trace/setting", "/v2/logging") for method in ("GET", "POST")),
    *(("GET", f"/v2/{kind}sharedmemory/status") for kind in ("system", "cuda")),
    *(("POST", f"/v2/{kind}sharedmemory/region/{{name}}/register") for kind in ("system", "cuda")),
)

# One of the roles suffices. A route that is not listed requires the manage role, so that a forgotten route opens nothing.
ROLES: dict[tuple[str, str], tuple[Role, ...]] = {
    ("POST", "/predictions/{model}"): _SUBMIT,
    ("POST", "/predictions/{model}/{version}"): _SUBMIT,
    ("POST", "/explanations/{model}"): _SUBMIT,
    ("POST", "/explanations/{model}/{version}"): _SUBMIT,
    ("POST", "/v1/models/{model}/jobs"): _SUBMIT,
    ("POST", "/v1/models/{model}/versions/{version}/jobs"): _SUBMIT,
    ("POST", "/v1/models/{model}/jobs:batch"): _SUBMIT,
    ("POST", "/v1/models/{model}/versions/{version}/jobs:batch"): _SUBMIT,
    ("GET", "/v1/jobs"): _SEE,
    ("GET", "/v1/jobs/events"): _SEE,
    ("GET", "/v1/jobs/{job_id}"): _SEE,
    ("GET", "/v1/jobs/{job_id}/result"): _SEE,
    ("GET", "/v1/jobs/{job_id}/result/parts/{place}"): _SEE,
    ("GET", "/v1/jobs/{job_id}/events"): _SEE,
    ("GET", "/v1/jobs/{job_id}/timeline"): _SEE,
    ("GET", "/v1/jobs/{job_id}/traceback"): _MANAGE,
    ("DELETE", "/v1/jobs/{job_id}"): _STOP,
    ("POST", "/v1/jobs:cancel"): _STOP,
    ("POST", "/v1/jobs/{job_id}/cancel"): _STOP,
    ("POST", "/v1/jobs/{job_id}/replay"): _STOP,
    ("GET", "/v1/jobs/{job_id}/deliveries"): _SEE,
    ("GET", "/v1/runs/{run_id}/deliveries"): _SEE,
    ("GET", "/v1/failed"): _SEE,
    ("POST", "/v1/failed:dismiss"): _STOP,
    ("POST", "/v1/failed:replay"): _STOP,
    ("GET", "/v1/webhooks/secret"): _SUBMIT,
    ("GET", "/v1/webhooks/undelivered"): _SEE,
    ("POST", "/v1/webhooks/replay"): _STOP,
    ("POST", "/v1/webhooks/dismiss"): _STOP,
    ("GET", "/replicate/v1/webhooks/default/secret"): _SUBMIT,
    ("POST", "/replicate/v1/predictions"): _SUBMIT,
    ("POST", "/replicate/v1/models/{owner}/{name}/predictions"): _SUBMIT,
    ("POST", "/replicate/v1/deployments/{owner}/{name}/predictions"): _SUBMIT,
    ("GET", "/replicate/v1/predictions"): _SEE,
    ("GET", "/replicate/v1/predictions/{job_id}"): _SEE,
    ("GET", "/replicate/v1/predictions/{job_id}/stream"): _SEE,
    ("POST", "/replicate/v1/predictions/{job_id}/cancel"): _STOP,
    ("GET", "/replicate/v1/models/{owner}/{name}"): ANY,
    ("GET", "/replicate/v1/models/{owner}/{name}/versions"): ANY,
    ("GET", "/replicate/v1/models/{owner}/{name}/versions/{version}"): ANY,
    ("POST", "/replicate/v1/files"): _SUBMIT,
    ("GET", "/replicate/v1/files"): _SEE,
    ("GET", "/replicate/v1/files/{file_id}"): _SEE,
    ("DELETE", "/replicate/v1/files/{file_id}"): _STOP,
    ("GET", "/cog/{model}"): ANY,
    ("GET", "/cog/{model}/"): ANY,
    ("GET", "/cog/{model}/health-check"): ANY,
    ("GET", "/cog/{model}/openapi.json"): ANY,
    ("POST", "/cog/{model}/predictions"): _SUBMIT,
    ("PUT", "/cog/{model}/predictions/{prediction_id}"): _SUBMIT,
    ("POST", "/cog/{model}/predictions/{prediction_id}/cancel"): _STOP,
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
    ("POST", "/v1/runs:cancel"): _STOP,
    ("GET", "/v1/runs/{run_id}"): _SEE,
    ("POST", "/v1/runs/{run_id}/cancel"): _STOP,
    ("POST", "/v1/runs/{run_id}/retry"): _STOP,
    ("GET", "/v1/queues"): _SEE,
    ("GET", "/v1/scaling"): _SEE,
    ("GET", "/v1/queues/{model}"): _SEE,
    ("GET", "/v1/history"): _SEE,
    ("GET", "/v1/models/{model}/history"): _SEE,
    ("GET", "/v1/models"): ANY,
    ("GET", "/v1/models/{model}"): ANY,
    ("GET", "/openapi.json"): ANY,
    ("GET", "/v2"): ANY,
    ("GET", "/v2/models/{model}"): ANY,
    ("GET", "/v2/models/{model}/config"): ANY,
    ("GET", "/v2/models/{model}/ready"): ANY,
    ("GET", "/v2/models/{model}/versions/{version}"): ANY,
    ("GET", "/v2/models/{model}/versions/{version}/config"): ANY,
    ("GET", "/v2/models/{model}/versions/{version}/ready"): ANY,
    ("POST", "/v2/models/{model}/infer"): _SUBMIT,
    ("POST", "/v2/models/{model}/versions/{version}/infer"): _SUBMIT,
    ("POST", "/v2/repository/index"): _MANAGE,
    ("POST", "/v2/repository/models/{model}/load"): _MANAGE,
    ("POST", "/v2/repository/models/{model}/unload"): _MANAGE,
    **dict.fromkeys(UNSERVED, _MANAGE),
    ("POST", "/v1/models/{model}/versions"): _MANAGE,
    ("DELETE", "/v1/models/{model}/versions/{version}"): _MANAGE,
    ("PUT", "/v1/models/{model}/default"): _MANAGE,
    ("PUT", "/v1/models/{model}/workers"): _MANAGE,
    ("DELETE", "/v1/models/{model}"): _MANAGE,
    ("GET", "/v1/models/{model}/rollout"): _MANAGE,
    ("DELETE", "/v1/models/{model}/rollout"): _MANAGE,
    ("PUT", "/v1/models/{model}/split"): _MANAGE,
    ("GET", "/v1/models/{model}/split"): _SEE,
    ("DELETE", "/v1/models/{model}/split"): _MANAGE,
    ("POST", "/v1/models/{model}/pause"): _MANAGE,
    ("POST", "/v1/models/{model}/resume"): _MANAGE,
    ("PUT", "/v1/models/{model}/limits"): _MANAGE,
    ("POST", "/v1/models/{model}/purge"): _MANAGE,
    ("POST", "/v1/models/{model}/profile"): _MANAGE,
    ("GET", "/v1/models/{model}/profile"): _MANAGE,
    ("GET", "/v1/workers"): _MANAGE,
    ("POST", "/v1/workers/{worker}/drain"): _MANAGE,
    ("POST", "/v1/workers/{worker}/resume"): _MANAGE,
    ("GET", "/v1/audit"): _MANAGE,
    ("POST", "/v1/keys"): _MANAGE,
    ("GET", "/v1/keys"): _MANAGE,
    ("DELETE", "/v1/keys/{key_id}"): _MANAGE,
    ("GET", "/metrics"): _MANAGE,
    ("GET", "/"): _SEE,
    ("GET", "/ui/live"): _SEE,
    ("GET", "/ui/history"): _SEE,
    ("GET", "/ui/models/{model}"): _SEE,
    ("GET", "/ui/workers"): _MANAGE,
    ("POST", "/ui/models/{model}/pause"): _MANAGE,
    ("POST", "/ui/models/{model}/resume"): _MANAGE,
    ("POST", "/ui/models/{model}/scale"): _MANAGE,
    ("POST", "/ui/models/{model}/limits"): _MANAGE,
    ("POST", "/ui/models/{model}/purge"): _MANAGE,
    ("POST", "/ui/workers/{worker}/drain"): _MANAGE,
    ("POST", "/ui/workers/{worker}/resume"): _MANAGE,
    ("GET", "/ui/models/{model}/errors"): _SEE,
    ("GET", "/ui/models/{model}/try/{version}"): _SEE,
    ("POST", "/ui/models/{model}/try/{version}"): _SUBMIT,
    ("GET", "/ui/failed/export"): _SEE,
    ("GET", "/ui/audit"): _MANAGE,
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
    ("POST", "/ui/failed/dismiss"): _STOP,
    ("GET", "/ui/webhooks"): _SEE,
    ("POST", "/ui/webhooks/replay"): _STOP,
    ("POST", "/ui/webhooks/dismiss"): _STOP,
    ("GET", "/ui/api"): _SEE,
    ("GET", "/ui/openapi.json"): ANY,
    ("GET", "/docs"): ANY,
}
# Probes, and the page that the `type` of a problem names. Without a key they reveal nothing of models, jobs or workers.
PUBLIC = frozenset({"/livez", "/readyz", "/startupz", "/ping", "/v2/health/live", "/v2/health/ready", "/problems/{code}"})
# The dashboard's sign-in, sign-out, and the files that are the same in every installation.
PUBLIC_PAGES = frozenset({"/ui/login", "/ui/logout", "/ui/static/{name}"})


class WaitingResponses:
    """The long polls, event streams and downloads of this process. What waits is no work: its place among the `requests` is
    free.
    """

    def __init__(self, most: int, *, requests: Shares) -> None:
        self._waits = Shares("long polls, event streams and downloads", most, setting="gateway.max_waits")
        self._requests = requests

    def check(self, caller: Caller) -> None:
        """Raises `RateLimited` if the owner has reached its share, `GatewayBusy` if no more can wait."""
        self._waits.check(caller)

    def is_free(self, caller: Caller) -> bool:
        """Whether one more may wait, for callers who prefer to wait but need not."""
        return self._waits.is_free(caller)

    def reading(self, caller: Caller, *, instead_of: Shares) -> AbstractContextManager[None]:
        """For a client that reads a large answer: a place here instead of the one it has, if one is free."""
        return self._waits.held(caller, instead_of=instead_of) if self.is_free(caller) else nullcontext()

    def open(self, caller: Caller) -> AbstractContextManager[None]:
        return self._waits.held(caller, instead_of=self._requests)


def roles_of(method: str, route: str) -> tuple[Role, ...]:
    """The roles of which a caller needs one; empty for a public route."""
    return () if route in PUBLIC or route in PUBLIC_PAGES else ROLES.get((method, route), _MANAGE)


def is_public(path: str) -> bool:
    return path in PUBLIC or path in PUBLIC_PAGES or path.startswith(("/problems/", "/ui/static/"))


class WrongToken(WrongRole):
    """One of TorchServe's tokens, and of another kind than the route takes."""


def require_role(caller: Caller, method: str, route: str) -> None:
    """Raises `WrongRole` unless the caller has one of the route's roles."""
    roles = roles_of(method, route)
    if roles and caller.roles.isdisjoint(roles):
        kind = WrongToken if caller.has_token else WrongRole
        raise kind(
            f"this API key may not do that: it needs the role {' or '.join(roles)}",
            hint="Use a key with that role; `penstock keys new NAME --role ...` makes one.",
        )


# Routes that take parameters of the model too, which are known once the model is, and so check the names themselves.
OWN_PARAMETERS = ("/jobs:batch",)


async def authorize(request: Request) -> Caller:
    """The caller, once its role and the names of its query parameters are checked. Every route of FastAPI depends on this."""
    caller: Caller = request.scope["caller"]
    route = request.scope["route"]
    require_role(caller, request.method, route.path)
    if route.path.startswith(("/v1/", "/replicate/", "/cog/")) and not route.path.endswith(OWN_PARAMETERS):
        # A misspelt parameter must not be ignored. Probes accept anything, since some monitors add parameters of their own.
        refuse_unknown(request.query_params, [field.alias for field in route.dependant.query_params])
    return caller


CallerParam = Annotated[Caller, Depends(authorize)]


def security_of(method: str, route: str) -> list[dict[str, Any]]:
    """The route's security requirement in OpenAPI 3.1: alternatives, one per role."""
    return [{"key": [role.value]} for role in roles_of(method, route)]
