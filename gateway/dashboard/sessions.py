"""Who looks at a page: a browser's session, kept in the store under a random name; and forms that only our pages may send."""

from __future__ import annotations

import hashlib
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from starlette.datastructures import Headers

from penstock.access import Role
from penstock.broker.store.aio import AsyncStore
from penstock.errors import BadRequest, RateLimited, TooLarge, UnsupportedMedia, WrongRole
from penstock.gateway.asgi.negotiation import base_type
from penstock.gateway.asgi.problems import CrossSite
from penstock.gateway.auth.keys import MAX_REMEMBERED, KeyAuth
from penstock.gateway.auth.rate_limit import AddressBuckets
from penstock.gateway.auth.roles import Caller

COOKIE = "penstock_session"
SESSION_S = 8 * 3600.0
# A session is a key in the store, so that many of them must not be had for nothing.
OPENED_PER_S, OPENED_BURST = 0.1, 20.0
MAX_FORM_BYTES = 8 * 1024
_MAX_FIELDS = 16
_ID_BYTES = 32
_FORM = "application/x-www-form-urlencoded"


class Sessions:
    """A cookie holds a random id and nothing else; what it stands for lies in the store, so all gateways of it know it.

    The store has the id's hash, and which key it was opened with: a key that is removed, replaced or expired ends its sessions.
    """

    def __init__(self, store: AsyncStore, door: KeyAuth) -> None:
        self._store = store
        self._door = door
        self._opened = AddressBuckets(rate_per_s=OPENED_PER_S, burst=OPENED_BURST, most=MAX_REMEMBERED)

    @property
    def needed(self) -> bool:
        return self._door.keyed

    async def open(self, key: str, address: str) -> str:
        """The new session's id. Raises `Unauthorized`, `RateLimited`, or `WrongRole` for a key that may not look."""
        caller = self._door.admit(b"Bearer " + key.strip().encode("utf-8", "replace"), address)
        if caller.roles.isdisjoint({Role.READ, Role.MANAGE}):
            raise WrongRole("this API key may not look at anything: it takes the role read or manage")
        wait_s = self._opened.take(caller.key_id, time.monotonic())
        if wait_s:
            raise RateLimited("too many sessions were opened with this API key", retry_after_s=wait_s)
        session = secrets.token_urlsafe(_ID_BYTES)
        await self._store.keep_session(_hash(session), f"{caller.key_id}:{self._door.mark_of(caller.key_id)}", SESSION_S)
        return session

    async def caller(self, headers: Headers) -> Caller | None:
        """Whoever the cookie stands for; None without a good one. Raises `RateLimited` as for the key itself."""
        session = session_id(headers.get("cookie", ""))
        kept = await self._store.session(_hash(session)) if session else None
        key_id, _, mark = (kept or "").partition(":")
        return self._door.holder(key_id, mark) if key_id else None

    async def close(self, headers: Headers) -> None:
        session = session_id(headers.get("cookie", ""))
        if session:
            await self._store.end_session(_hash(session))


def session_id(cookies: str) -> str:
    """Empty for anything that cannot be one of ours."""
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    value = found.value if found else ""
    return value if 20 <= len(value) <= 64 and value.isascii() else ""


def cookie(session: str, *, path: str, secure: bool, max_age_s: float = SESSION_S) -> str:
    parts = [f"{COOKIE}={session}", f"Path={path}", f"Max-Age={max_age_s:.0f}", "HttpOnly", "SameSite=Strict"]
    return "; ".join(parts + (["Secure"] if secure else []))


def is_https(request: Request) -> bool:
    """As the browser sees it: behind a proxy that ends TLS, only the page's own origin tells."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def check_same_site(headers: Headers) -> None:
    """Raises `CrossSite` unless the browser says that one of our own pages sent this.

    `Sec-Fetch-Site` cannot be set by a script; browsers send it to https and loopback. Elsewhere the `Origin` has to be ours.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
    elif (origin := headers.get("origin")) and urlsplit(origin).netloc == headers.get("host"):
        return
    raise CrossSite(
        "this form was not sent by a page of this gateway",
        hint="Open the dashboard and press its own button; programs use the API with a key.",
    )


async def form(request: Request) -> dict[str, str]:
    """The fields of a small form; raises for anything else."""
    if base_type(request.headers.get("content-type", "")) != _FORM:
        raise UnsupportedMedia(f"this path takes {_FORM}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise TooLarge(f"a form of this page has at most {MAX_FORM_BYTES} bytes")
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise BadRequest("the form cannot be read") from None


def _hash(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()
