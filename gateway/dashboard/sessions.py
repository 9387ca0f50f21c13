"""Browser sessions, kept in the store under a random name, and forms that only our own pages may send."""

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
from penstock.gateway.auth.keys import MAX_REMEMBERED, Caller, KeyAuth
from penstock.gateway.auth.rate_limit import AddressBuckets

COOKIE = "penstock_session"
SESSION_S = 8 * 3600.0
# Every session takes a key in the store, so the rate of new sessions per API key is limited.
OPENED_PER_S, OPENED_BURST = 0.1, 20.0
MAX_FORM_BYTES = 8 * 1024
_MAX_FIELDS = 16
_ID_BYTES = 32
_FORM = "application/x-www-form-urlencoded"


class Sessions:
    """Opens, finds and ends sessions. A cookie holds a random id; the rest is in the store, shared by all gateways (D36).

    The store has the id's hash and the API key of the session. A key's sessions end when it is removed, replaced or expired.
    """

    def __init__(self, store: AsyncStore, auth: KeyAuth) -> None:
        self._store = store
        self._auth = auth
        self._opened = AddressBuckets(rate_per_s=OPENED_PER_S, burst=OPENED_BURST, most=MAX_REMEMBERED)

    @property
    def needed(self) -> bool:
        return self._auth.keyed

    async def open(self, key: str, address: str) -> str:
        """The new session's id. Raises `Unauthorized`, `RateLimited`, or `WrongRole` for a key that may not read."""
        caller = self._auth.admit(b"Bearer " + key.strip().encode("utf-8", "replace"), address)
        if caller.has_token:
            raise WrongRole("tokens open no session of the dashboard; sign in with a key of [[keys]]")
        if caller.roles.isdisjoint({Role.READ, Role.MANAGE}):
            raise WrongRole("this API key may not see the dashboard, which needs the role read or manage")
        wait_s = self._opened.take(caller.key_id, time.monotonic())
        if wait_s:
            raise RateLimited("too many sessions were opened with this API key", retry_after_s=wait_s)
        session = secrets.token_urlsafe(_ID_BYTES)
        await self._store.keep_session(_hash(session), f"{caller.key_id}:{self._auth.secret_mark(caller.key_id)}", SESSION_S)
        return session

    async def caller(self, headers: Headers) -> Caller | None:
        """The caller whose session the cookie names; None without a valid session. Raises `RateLimited` as a key does."""
        session = session_id(headers.get("cookie", ""))
        stored = await self._store.session(_hash(session)) if session else None
        key_id, _, mark = (stored or "").partition(":")
        return self._auth.caller_of_key(key_id, mark) if key_id else None

    async def close(self, headers: Headers) -> None:
        session = session_id(headers.get("cookie", ""))
        if session:
            await self._store.end_session(_hash(session))


def session_id(cookies: str) -> str:
    """The session id in a Cookie header; empty for a value that cannot be one of ours."""
    try:
        kept = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return ""
    value = kept.value if kept else ""
    return value if 20 <= len(value) <= 64 and value.isascii() else ""


def cookie(session: str, *, path: str, secure: bool, max_age_s: float = SESSION_S) -> str:
    parts = [f"{COOKIE}={session}", f"Path={path}", f"Max-Age={max_age_s:.0f}", "HttpOnly", "SameSite=Strict"]
    return "; ".join(parts + (["Secure"] if secure else []))


def is_https(request: Request) -> bool:
    """True if the browser uses https. Behind a proxy that ends TLS, only the page's origin shows it."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def check_same_site(headers: Headers) -> None:
    """Raises `CrossSite` unless the browser says that one of our own pages sent this.

    No script can set `Sec-Fetch-Site`. Browsers send it over https and on loopback. Elsewhere the `Origin` must be ours.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
    elif (origin := headers.get("origin")) and urlsplit(origin).netloc == headers.get("host"):
        return
    raise CrossSite(
        "this form was not sent by a page of this gateway",
        hint="Use the button on the dashboard. Programs use the API with a key.",
    )


async def form(request: Request) -> dict[str, str]:
    """The fields of a small form. Raises for any other body."""
    if base_type(request.headers.get("content-type", "")) != _FORM:
        raise UnsupportedMedia(f"this path accepts only {_FORM}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise TooLarge(f"a form may have at most {MAX_FORM_BYTES} bytes")
    try:
        fields = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise BadRequest("the form cannot be read") from None
    if "act" in request.scope:
        # For the audit log.
        request.scope["said"] = fields
    return fields


def _hash(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()
