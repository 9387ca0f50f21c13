"""The dashboard put together: its routes, signing in and out, and refusals that a person can read."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.aio import AsyncStore
from penstock.errors import PenstockError
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.problems import ProblemResponse
from penstock.gateway.auth.keys import KeyAuth
from penstock.gateway.auth.roles import NOBODY, Caller, Holds
from penstock.gateway.dashboard.assets import asset
from penstock.gateway.dashboard.failed_pages import FailedPages
from penstock.gateway.dashboard.job_pages import JobPages
from penstock.gateway.dashboard.live import OverviewPoller
from penstock.gateway.dashboard.overview import Document, OverviewPages
from penstock.gateway.dashboard.render import HEADERS, Renderer
from penstock.gateway.dashboard.run_pages import RunPages
from penstock.gateway.dashboard.sessions import Sessions, check_same_site, cookie, form, is_https, session_id
from penstock.gateway.jobs.replay import Replays
from penstock.gateway.jobs.submitter import GatewayJobLog
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.options import GatewayOptions
from penstock.gateway.runs.service import RunService

SIGN_IN = "/ui/login"


def is_page(path: str) -> bool:
    return path == "/" or path.startswith("/ui/")


class Pages:
    """`document` is the OpenAPI document of this gateway."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        store: AsyncStore,
        blobs: BlobStore,
        door: KeyAuth,
        registry: ModelRegistry,
        replays: Replays,
        holds: Holds,
        lifetime: Lifetime,
        document: Document,
        runs: RunService,
    ) -> None:
        self._root = options.root_path
        self._sessions = Sessions(store, door)
        self._renderer = Renderer(options.root_path, keyed=door.keyed)
        self._board = OverviewPoller(store, registry, stop=lifetime.draining)
        job_log = GatewayJobLog(options.log_jobs)
        self._parts = (
            OverviewPages(
                self._renderer, self._board, registry=registry, holds=holds, document=document, scraped=options.metrics
            ),
            JobPages(self._renderer, store=store, blobs=blobs, registry=registry, replays=replays, job_log=job_log),
            FailedPages(self._renderer, store=store, registry=registry, replays=replays),
            RunPages(self._renderer, runs),
        )

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, include_in_schema=False, dependencies=[Depends(_from_our_page)])
        for part in self._parts:
            part.routes(router)
        router.add_api_route(SIGN_IN, self.sign_in_page, methods=["GET"])
        router.add_api_route(SIGN_IN, self.sign_in, methods=["POST"])
        router.add_api_route("/ui/logout", self.sign_out, methods=["POST"])
        router.add_api_route("/ui/static/{name}", self.static, methods=["GET"])
        return router

    async def close(self) -> None:
        await self._board.close()

    async def caller(self, headers: Headers) -> Caller | None:
        """Whoever is signed in; None for a stranger."""
        return await self._sessions.caller(headers)

    async def stranger(self, request: Request) -> Response:
        """The way to the sign-in page, the same from every path."""
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={**HEADERS, "hx-redirect": self._renderer.url(SIGN_IN)})
        if request.method != "GET":
            return self._renderer.redirect(SIGN_IN)
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.headers.get("sec-fetch-site") == "cross-site" and session_id(request.headers.get("cookie", "")) == "":
            # A strict cookie is kept back on the way from another site; one step of our own later it is there.
            return await self._renderer.page("again.html", NOBODY, {"here": "", "target": self._root + here})
        return self._renderer.redirect(SIGN_IN, next=here if here != "/" else "")

    async def sign_in_page(self, request: Request, next: str = "") -> Response:
        if not self._sessions.needed or await self._sessions.caller(request.headers):
            return self._renderer.back(_inside(next))
        return await self._renderer.page("login.html", NOBODY, {"here": "", "next": _inside(next), "error": None})

    async def sign_in(self, request: Request) -> Response:
        fields = await form(request)
        target = _inside(fields.get("next", ""))
        if not self._sessions.needed:
            return self._renderer.back(target)
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
        return self._with_cookie(request, self._renderer.back(target), session)

    async def sign_out(self, request: Request) -> Response:
        await self._sessions.close(request.headers)
        answer = self._renderer.redirect(SIGN_IN)
        answer.headers.append("set-cookie", cookie("", path=self._root + "/", secure=is_https(request), max_age_s=0))
        return answer

    async def static(self, name: str) -> Response:
        return asset(name)

    async def refusal(self, request: Request, problem: ProblemResponse, error: Exception) -> Response:
        """A problem as a page; as a line of text for what a page asked for by itself."""
        caller: Caller = request.scope.get("caller") or NOBODY
        told = error if isinstance(error, PenstockError) else None
        template = "_refusal.html" if request.headers.get("hx-request") else "error.html"
        return await self._renderer.page(
            template, caller, {"here": "", "error": told, "problem": problem}, status=problem.status
        )

    def _with_cookie(self, request: Request, answer: Response, session: str) -> Response:
        answer.headers.append("set-cookie", cookie(session, path=self._root + "/", secure=is_https(request)))
        return answer


async def _from_our_page(request: Request) -> None:
    if request.method != "GET":
        check_same_site(request.headers)


def _inside(path: str) -> str:
    """A path of our own pages, whatever was asked for: a sign-in must not lead elsewhere."""
    plain = path.startswith("/") and not path.startswith("//") and path.isascii() and path.isprintable() and "\\" not in path
    return path if plain and is_page(path.partition("?")[0]) and not path.startswith(SIGN_IN) else "/"
