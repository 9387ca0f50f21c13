"""Renders pages as HTML: templates, headers of every page, and the files that pages load."""

# D36: the gateway renders its dashboard itself.

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response

from penstock import words
from penstock.access import Role
from penstock.errors import NotFound
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.auth.keys import Caller

if TYPE_CHECKING:
    from jinja2 import Environment

# No inline code and no other host: text of a job that became markup could neither run nor send anything.
# Previews of images are data URIs, which cannot run code either.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# `same-origin`, because with `no-referrer` browsers hide the origin of our own forms.
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
ASSET_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """A link at the top of every page. It is marked on pages whose `here` is `name`."""

    name: str
    path: str
    word: str


class Renderer:
    """Renders pages. `root` is the path prefix of a proxy, without a slash at its end. `keyed`: users have to sign in.
    `menu`: entries beside our own. `templates`: packages with more templates, by the first part of their names.
    """

    def __init__(
        self, root: str, *, keyed: bool, menu: Sequence[MenuEntry] = (), templates: Mapping[str, str] | None = None
    ) -> None:
        self._root = root
        self._keyed = keyed
        self._menu = menu
        self._packages = templates or {}
        self._environment: Environment | None = None

    def url(self, path: str, **query: str) -> str:
        """An address of the dashboard for browsers. Empty query values are left out."""
        query_text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
        return f"{self._root}{quote(path)}" + (f"?{query_text}" if query_text else "")

    async def load(self) -> None:
        """Load the template library and the templates in a thread, so that no request waits. Call it before `html`."""
        if self._environment is None:
            self._environment = await asyncio.to_thread(self._load_templates)

    def html(self, template: str, values: Mapping[str, Any]) -> str:
        assert self._environment is not None, "load() comes first"
        return self._environment.get_template(template).render(values)

    async def page(self, template: str, caller: Caller, values: Mapping[str, Any], *, status: int = 200) -> Response:
        await self.load()
        manages = Role.MANAGE in caller.roles
        body = self.html(template, {**values, "caller": caller, "manages": manages, "keyed": self._keyed})
        return Response(body, status_code=status, media_type=HTML, headers=HEADERS)

    def redirect(self, path: str, **query: str) -> Response:
        return Response(status_code=303, headers={**HEADERS, "location": self.url(path, **query)})

    def redirect_back(self, target: str) -> Response:
        """A redirect to a path of the dashboard, which may have a query."""
        return Response(status_code=303, headers={**HEADERS, "location": self._root + target})

    def _load_templates(self) -> Environment:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined

        of_extensions = PrefixLoader({name: PackageLoader(package) for name, package in self._packages.items()})
        loader = ChoiceLoader([PackageLoader("penstock.gateway.dashboard"), of_extensions])
        environment = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters |= {
            "seconds": words.duration,
            "count": words.count,
            "rate": words.number,
            "size": words.size,
            "moment": words.moment,
            "rfc3339": rfc3339,
            "cores": words.ranges,
        }
        environment.globals |= {"url": self.url, "static": lambda name: self._root + "/ui/static/" + asset_address(name)}
        environment.globals |= {"plural": words.plural, "ago": words.ago, "menu": self._menu}
        for name in environment.list_templates():
            environment.get_template(name)
        return environment


@cache
def _files() -> dict[str, Traversable]:
    """Every file that may be served, by name. Licences and notes in the same folder are not served."""
    folder = resources.files("penstock.gateway.dashboard").joinpath("static")
    return {file.name: file for file in folder.iterdir() if _suffix(file.name) in ASSET_TYPES}


@cache
def _content(name: str) -> bytes:
    """Read on first use: Swagger UI is larger than all other files together and is seldom opened."""
    return _files()[name].read_bytes()


@cache
def asset_address(name: str) -> str:
    """The address below `/ui/static/`. It changes with the content, so that browsers may cache the file forever."""
    return f"{name}?v={hashlib.sha256(_content(name)).hexdigest()[:12]}"


def asset(name: str) -> Response:
    if name not in _files():
        raise NotFound("there is no such file")
    headers = {"cache-control": _FOREVER, "x-content-type-options": "nosniff"}
    return Response(_content(name), media_type=ASSET_TYPES[_suffix(name)], headers=headers)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
