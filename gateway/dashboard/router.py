"""The dashboard as a whole: its routes, sign-in and sign-out, and errors as pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.gateway.asgi.problems import ProblemResponse
from penstock.gateway.auth.keys import NOBODY, Caller
from penstock.gateway.dashboard.pages.failed_pages import FailedPages
from penstock.gateway.dashboard.pages.job_pages import JobPages
from penstock.gateway.dashboard.pages.operator_pages import OperatorPages
from penstock.gateway.dashboard.pages.overview import DOCS, Document, OverviewPages
from penstock.gateway.dashboard.pages.run_pages import RunPages
from penstock.gateway.dashboard.pages.try_pages import TryPages
from penstock.gateway.dashboard.parts import DashboardPart, PageGroup
from penstock.gateway.dashboard.poller import OverviewPoller
from penstock.gateway.dashboard.render import HEADERS, Renderer, asset
from penstock.gateway.dashboard.sessions import Sessions, check_same_site, cookie, form, is_https, session_id

if TYPE_CHECKING:
    from penstock.gateway.services import Services

SIGN_IN = "/ui/login"


def is_page(path: str) -> bool:
    return path in ("/", DOCS) or path.startswith("/ui/")


class Pages:
    """All pages of one gateway: ours, then those of extensions. `document` returns its OpenAPI document."""

    def __init__(self, services: Services, extensions: Sequence[DashboardPart], *, document: Document) -> None:
        self._audit = services.audit
        self._root = services.settings.gateway.root_path
        self._sessions = Sessions(services.store, services.auth)
        self._renderer = renderer = _renderer(services, extensions)
        self._poller = OverviewPoller(services.store, services.registry, is_stopping=services.lifetime.is_draining)
        words = {kind: word for part in extensions for kind, word in part.run_words.items()}
        self._parts: tuple[PageGroup, ...] = (
            OverviewPages(renderer, self._poller, services, extensions, document=document),
            JobPages(renderer, services, extensions),
            FailedPages(renderer, services),
            OperatorPages(renderer, services),
            TryPages(renderer, services),
            RunPages(renderer, services.runs, words),
            *(part.pages(renderer) for part in extensions if part.pages is not None),
        )

    def router(self) -> APIRouter:
        router = APIRouter(
            default_response_class=Response,
            include_in_schema=False,
            dependencies=[Depends(_from_our_page), Depends(self._audit.note)],
        )
        for part in self._parts:
            part.add_routes(router)
        router.add_api_route(SIGN_IN, self.sign_in_page, methods=["GET"])
        router.add_api_route(SIGN_IN, self.sign_in, methods=["POST"])
        router.add_api_route("/ui/logout", self.sign_out, methods=["POST"])
        router.add_api_route("/ui/static/{name}", self.static, methods=["GET"])
        return router

    async def close(self) -> None:
        await self._poller.close()

    async def caller(self, headers: Headers) -> Caller | None:
        """The caller of a signed-in browser; None without a session."""
        return await self._sessions.caller(headers)

    async def ask_to_sign_in(self, request: Request) -> Response:
        """The answer to a caller who is not signed in: the sign-in page, the same for every path."""
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={**HEADERS, "hx-redirect": self._renderer.url(SIGN_IN)})
        if request.method != "GET":
            return self._renderer.redirect(SIGN_IN)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.headers.get("sec-fetch-site") == "cross-site" and session_id(request.headers.get("cookie", "")) == "":
            # Browsers withhold a strict cookie on a link from another site, but send it when this page links to ours.
            return await self._renderer.page("again.html", NOBODY, {"here": "", "target": self._root + target})
        return self._renderer.redirect(SIGN_IN, next=target if target != "/" else "")

    async def sign_in_page(self, request: Request, next: str = "") -> Response:
        if not self._sessions.needed or await self._sessions.caller(request.headers):
            return self._renderer.redirect_back(_own_path(next))
        return await self._renderer.page("login.html", NOBODY, {"here": "", "next": _own_path(next), "error": None})

    async def sign_in(self, request: Request) -> Response:
        fields = await form(request)
        target = _own_path(fields.get("next", ""))
        if not self._sessions.needed:
            return self._renderer.redirect_back(target)
        address = request.client.host if request.client else ""
        try:
            session = await self._sessions.open(fields.get("key", ""), address)
        except PenstockError as refusal:
            if refusal.kind not in ("unauthorized", "wrong_role", "rate_limited"):
                raise
            status = {"unauthorized": 401, "wrong_role": 403}.get(refusal.kind, 429)
            return await self._renderer.page(
                "login.html", NOBODY, {"here": "", "next": target, "error": refusal}, status=status
            )
        return self._with_cookie(request, self._renderer.redirect_back(target), session)

    async def sign_out(self, request: Request) -> Response:
        await self._sessions.close(request.headers)
        answer = self._renderer.redirect(SIGN_IN)
        answer.headers.append("set-cookie", cookie("", path=self._root + "/", secure=is_https(request), max_age_s=0))
        return answer

    async def static(self, name: str) -> Response:
        return asset(name)

    async def error_page(self, request: Request, problem: ProblemResponse, error: Exception) -> Response:
        """An error as a page, or as a banner if a page's script sent the request."""
        caller: Caller = request.scope.get("caller") or NOBODY
        known = error if isinstance(error, PenstockError) else None
        template = "_refusal.html" if request.headers.get("hx-request") else "error.html"
        return await self._renderer.page(
            template, caller, {"here": "", "error": known, "problem": problem}, status=problem.status
        )

    def _with_cookie(self, request: Request, answer: Response, session: str) -> Response:
        answer.headers.append("set-cookie", cookie(session, path=self._root + "/", secure=is_https(request)))
        return answer


def _renderer(services: Services, extensions: Sequence[DashboardPart]) -> Renderer:
    return Renderer(
        services.settings.gateway.root_path,
        keyed=services.auth.keyed,
        menu=[entry for part in extensions for entry in part.menu],
        templates={name: package for part in extensions for name, package in part.templates.items()},
    )


async def _from_our_page(request: Request) -> None:
    if request.method != "GET":
        check_same_site(request.headers)


def _own_path(path: str) -> str:
    """The path if it is one of our own pages, else the start page: a sign-in must not lead to another site."""
    is_plain = path.startswith("/") and not path.startswith("//") and path.isascii() and path.isprintable() and "\\" not in path
    return path if is_plain and is_page(path.partition("?")[0]) and not path.startswith(SIGN_IN) else "/"
