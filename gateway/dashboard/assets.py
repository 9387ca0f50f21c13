"""The files that pages load, served from here under a name that changes with their bytes, so that browsers may keep them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from starlette.responses import Response

from penstock.errors import NotFound

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


@cache
def _files() -> dict[str, bytes]:
    """Read at the first look; licences and notes lie beside them and are not served."""
    folder = resources.files("penstock.gateway.dashboard").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if _suffix(file.name) in TYPES}


@cache
def address(name: str) -> str:
    """Below `/ui/static/`, with a part of its digest."""
    return f"{name}?v={hashlib.sha256(_files()[name]).hexdigest()[:12]}"


def asset(name: str) -> Response:
    if name not in _files():
        raise NotFound("there is no such file")
    headers = {"cache-control": _FOREVER, "x-content-type-options": "nosniff"}
    return Response(_files()[name], media_type=TYPES[_suffix(name)], headers=headers)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
