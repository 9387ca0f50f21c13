"""GET /metrics: a route beside the API, or a private port for gateways whose main port is public."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from penstock.errors import NotFound, PenstockError
from penstock.gateway.asgi import problems, wire
from penstock.gateway.asgi.negotiation import host_name
from penstock.gateway.asgi.problems import MethodNotAllowed, WrongHost
from penstock.gateway.asgi.wire import Receive, Scope, Send

_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)
_SAMPLE = re.compile(r"^(\w+)[ {]", re.MULTILINE)


def only_named(text: bytes, names: Collection[str]) -> bytes:
    """The families of a scrape with one of these names, or with a sample of that name; all without names."""
    if not names:
        return text
    families = _FAMILY.split(text.decode())
    return "".join(family for family in families if family and _names_of(family) & set(names)).encode()


def _names_of(family: str) -> set[str]:
    return {family.split(" ", 3)[2], *_SAMPLE.findall(family)}


def scrape_router(scrape: Callable[[], Awaitable[bytes]]) -> APIRouter:
    """The route beside the API."""
    router = APIRouter(default_response_class=Response, tags=["health"])

    async def metrics(names: Annotated[list[str] | None, Query(alias="name[]")] = None) -> Response:
        return Response(only_named(await scrape(), names or ()), media_type=CONTENT_TYPE_LATEST)

    router.add_api_route("/metrics", metrics, methods=["GET"], summary="Prometheus")
    return router


class MetricsPort:
    """The private port as an ASGI application. `hosts` are the accepted Host names (empty: any)."""

    def __init__(self, scrape: Callable[[], Awaitable[bytes]], *, hosts: frozenset[str]) -> None:
        self._scrape = scrape
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
            body = only_named(await self._scrape(), parse_qs(scope["query_string"].decode("latin-1")).get("name[]", ()))
        except PenstockError as error:
            problem = problems.render(error, request_id=problems.request_id_of(None), instance=scope["path"][:200])
            await wire.answer_problem(send, problem, {})
            return
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode("ascii")), (b"content-length", b"%d" % len(body))]
        await wire.answer(send, 200, headers, body)

    def _check(self, scope: Scope) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if self._hosts and host_name(host) not in self._hosts:
            raise WrongHost("this port accepts its loopback names only")
        if scope["path"] != "/metrics":
            raise NotFound("this port serves only /metrics")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("/metrics takes GET", allow="GET, HEAD")
