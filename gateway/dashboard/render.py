"""Pages as HTML: the templates, loaded when the first page is asked for, and the headers that every page carries."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response

from penstock import words
from penstock.access import Role
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.auth.roles import Caller
from penstock.gateway.dashboard import assets

if TYPE_CHECKING:
    from jinja2 import Environment

# Nothing inline and nothing from elsewhere: text that slipped through as markup could neither run nor report anything.
# Small images of jobs are shown from data URIs, which run nothing either.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# `same-origin`, not `no-referrer`: under that one browsers would hide the origin of our own forms from us.
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
HTML = "text/html; charset=utf-8"


class Renderer:
    """`root` is the path prefix under which browsers see the gateway, without a slash at its end; `keyed`: one signs in."""

    def __init__(self, root: str, *, keyed: bool) -> None:
        self._root = root
        self._keyed = keyed
        self._environment: Environment | None = None

    def url(self, path: str, **query: str) -> str:
        """An address of ours as browsers see it; empty values are left out."""
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
        return f"{self._root}{quote(path)}" + (f"?{asked}" if asked else "")

    async def ready(self) -> None:
        """Afterwards `html` may be called. The library and the templates load in a thread: requests must not wait for them."""
        if self._environment is None:
            self._environment = await asyncio.to_thread(self._load)

    def html(self, template: str, values: Mapping[str, Any]) -> str:
        assert self._environment is not None, "ready() comes first"
        return self._environment.get_template(template).render(values)

    async def page(self, template: str, caller: Caller, values: Mapping[str, Any], *, status: int = 200) -> Response:
        await self.ready()
        manages = Role.MANAGE in caller.roles
        body = self.html(template, {**values, "caller": caller, "manages": manages, "keyed": self._keyed})
        return Response(body, status_code=status, media_type=HTML, headers=HEADERS)

    def redirect(self, path: str, **query: str) -> Response:
        return Response(status_code=303, headers={**HEADERS, "location": self.url(path, **query)})

    def back(self, target: str) -> Response:
        """To a path of ours with its query, as it was once asked for."""
        return Response(status_code=303, headers={**HEADERS, "location": self._root + target})

    def _load(self) -> Environment:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader("penstock.gateway.dashboard")
        made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        made.filters |= {
            "seconds": words.duration,
            "count": words.count,
            "rate": words.number,
            "size": words.size,
            "moment": words.moment,
            "rfc3339": rfc3339,
            "cores": words.ranges,
        }
        made.globals |= {"url": self.url, "static": lambda name: self._root + "/ui/static/" + assets.address(name)}
        made.globals |= {"plural": words.plural, "ago": words.ago}
        for name in made.list_templates():
            made.get_template(name)
        return made
