"""The paths that FastAPI serves, all except the submits: their document, and the responses to their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.gateway.asgi.negotiation import read_head
from penstock.gateway.asgi.wire import CLIENT_GONE, ClientGone, headers_for, json_response
from penstock.gateway.auth.roles import authorize
from penstock.gateway.auth.rules import RouteRules
from penstock.gateway.dashboard.router import Pages, is_page
from penstock.gateway.error_responses import from_framework, problem_of
from penstock.gateway.extending import GatewayPart, words_of
from penstock.gateway.openapi import document
from penstock.gateway.services import Services


class RoutedApi:
    """`app` serves `routers`. If there are `pages`, their router is the last one."""

    def __init__(
        self,
        services: Services,
        rules: RouteRules,
        routers: Sequence[APIRouter],
        pages: Pages | None,
        extensions: Sequence[GatewayPart],
    ) -> None:
        self._root = services.settings.gateway.root_path
        self._routers = routers
        self._pages = pages
        self._auth = services.auth
        self._audit = services.audit
        self._registry = services.registry
        self._documents = [part.document for part in extensions if part.document is not None]
        self._words = words_of(extensions)
        self.app = self._build()
        self.app.state.rules = rules

    def _build(self) -> FastAPI:
        # FastAPI's own pages are off, because they load foreign scripts; so is its document, which lacks the models.
        app = FastAPI(
            title="penstock",
            version="1",
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            servers=[{"url": self._root}] if self._root else None,
            dependencies=[Depends(authorize)],
        )
        for router in self._routers:
            # The pages record acts themselves, after they have checked the form's origin.
            notes = [] if self._pages is not None and router is self._routers[-1] else [Depends(self._audit.note)]
            app.include_router(router, dependencies=notes)
        app.add_api_route(
            "/openapi.json", self._answer_document, methods=["GET"], include_in_schema=False, response_class=Response
        )
        for kind in (PenstockError, HTTPException, RequestValidationError, Exception):
            app.add_exception_handler(kind, self._answer_error)
        for kind in (ClientGone, ClientDisconnect):
            app.add_exception_handler(kind, _end_unheard)
        return app

    async def _answer_document(self) -> Response:
        return json_response(self.document())

    def document(self) -> dict[str, Any]:
        """The OpenAPI document of all paths, with the models that the gateway knows now."""
        schema = document(self.app, self._registry.models, keyed=self._auth.keyed)
        for add in self._documents:
            schema = add(schema, self._auth.keyed)
        return schema

    async def _answer_error(self, request: Request, error: Exception) -> Response:
        given_id = request.headers.get("x-request-id", "").encode("latin-1")
        ours = from_framework(error, request, self._routers)
        problem = problem_of(ours, request.scope, given_id or None, self._words)  # type: ignore[arg-type]
        if self._pages is not None and is_page(request.scope["path"]):
            return await self._pages.error_page(request, problem, ours)
        response = Response(problem.body, status_code=problem.status)
        response.raw_headers = headers_for(problem, read_head(request.headers.raw))
        return response


async def _end_unheard(_: Request, __: Exception) -> Response:
    """The client disconnected during a route: that is not a bug, and no response is read."""
    return Response(status_code=CLIENT_GONE)
