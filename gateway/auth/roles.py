"""Checks the caller of each route of FastAPI, and limits waiting responses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

from fastapi import Depends, Request

from penstock.gateway.asgi.negotiation import refuse_unknown
from penstock.gateway.auth.keys import Caller, Shares
from penstock.gateway.auth.rules import RouteRules, require_role


class WaitingResponses:
    """The long polls, event streams and downloads of this process. While one waits, its permit of `requests` is free."""

    def __init__(self, most: int, *, requests: Shares) -> None:
        self._waits = Shares("long polls, event streams and downloads", most, setting="gateway.max_waits")
        self._requests = requests

    def check(self, caller: Caller) -> None:
        """Raises `RateLimited` if the owner has reached its share, `GatewayBusy` if no more can wait."""
        self._waits.check(caller)

    def is_free(self, caller: Caller) -> bool:
        """Whether one more response may wait, for callers whose wait is optional."""
        return self._waits.is_free(caller)

    def reading(self, caller: Caller, *, instead_of: Shares) -> AbstractContextManager[None]:
        """For a client that reads a large answer: a permit here in exchange for its own, if one is free."""
        return self._waits.held(caller, instead_of=instead_of) if self.is_free(caller) else nullcontext()

    def open(self, caller: Caller) -> AbstractContextManager[None]:
        return self._waits.held(caller, instead_of=self._requests)


# Routes whose parameters depend on the model; they check the names themselves once they know it.
OWN_PARAMETERS = ("/jobs:batch",)


def rules_of(request: Request) -> RouteRules:
    """The rules of the request's gateway."""
    rules: RouteRules = request.app.state.rules
    return rules


async def authorize(request: Request) -> Caller:
    """Check the caller's role and the names of its query parameters; returns the caller. All FastAPI routes need this."""
    caller: Caller = request.scope["caller"]
    route, rules = request.scope["route"], rules_of(request)
    require_role(caller, rules.roles_of(request.method, route.path))
    if route.path.startswith(rules.strict) and not route.path.endswith(OWN_PARAMETERS):
        # A misspelt parameter must not be ignored. Probes accept anything, since some monitors add parameters of their own.
        refuse_unknown(request.query_params, [field.alias for field in route.dependant.query_params])
    return caller


CallerParam = Annotated[Caller, Depends(authorize)]
