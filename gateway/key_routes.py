"""The routes of keys that are made and revoked while gateways run."""

# D113: docs/design/gateway.md
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.access import KEY_ID, OWNER, Key, Role, digest_of, new_secret
from penstock.broker.store import registry
from penstock.broker.store.registry import MOST_KEYS, StoredKey
from penstock.errors import ConfigError, Conflict, InvalidInput, NotFound, Overloaded, WrongRole
from penstock.gateway.asgi.wire import json_body, json_response
from penstock.gateway.auth.key_beat import KNOWN_WITHIN_S
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.settings.keys import added_key_settings, declared, key_class

if TYPE_CHECKING:
    from penstock.gateway.services import Services

log = structlog.get_logger(__name__)

_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_COUNT = {"type": "integer", "minimum": 1}
_MAKE: dict[str, Any] = {
    "type": "object",
    "required": ["id", "roles"],
    "properties": {
        "id": {"type": "string", "pattern": f"^{KEY_ID.pattern}$"},
        "roles": {"type": "array", "items": {"enum": [role.value for role in Role]}, "minItems": 1},
        "owner": {"type": "string", "pattern": f"^{OWNER.pattern}$", "description": "Without it the id"},
        "rate_per_s": {**_POSITIVE, "description": "Requests, over all gateways of the store"},
        "burst": _COUNT,
        "max_open_jobs": _COUNT,
        "expires_at": {"type": "string", "format": "date-time"},
    },
    "additionalProperties": False,
}
_OF_PYDANTIC = ("title", "default")
_SECRET = {"cache-control": "no-store"}


class KeyRoutes:
    """`penstock keys` and the clients call these routes."""

    def __init__(self, services: Services, checks: Sequence[Callable[[Key], None]]) -> None:
        self._checks = checks
        self._beat = services.key_beat
        self._auth = services.auth
        self._store = services.store
        self._settings = services.settings
        self._uploads = services.uploads

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["keys"]
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": _make_schema()}}}}
        add = router.add_api_route
        add("/v1/keys", self.make, methods=["POST"], tags=tags, summary="Make a key", status_code=201, openapi_extra=body)
        add("/v1/keys", self.show, methods=["GET"], tags=tags, summary="The keys, without their secrets")
        add("/v1/keys/{key_id}", self.revoke, methods=["DELETE"], tags=tags, summary="Revoke a key")
        return router

    async def make(self, request: Request, caller: CallerParam) -> Response:
        """The key with its secret, which cannot be read again. Every gateway accepts it within `within_s` seconds."""
        self._require_operator(caller)
        given = await json_body(request, self._settings.gateway, self._uploads)
        secret = new_secret()
        key = self._checked(given, digest_of(secret.encode("ascii")))
        await self._require_free(key.id)
        request.scope["said"] = {"key": key.id, "owner": key.owner, "roles": sorted(key.roles)}
        made = StoredKey(key, made_at=await self._store.now(), made_by=caller.key_id)
        await self._put(made)
        log.info("key_made", key=key.id, owner=key.owner, roles=sorted(key.roles), **_who(request, caller))
        await self._beat.beat()
        shown = {"key": f"{key.id}.{secret}", **key_view(key, made), "within_s": KNOWN_WITHIN_S}
        return json_response(shown, status=201, headers=_SECRET)

    async def show(self, caller: CallerParam) -> Response:
        """The keys of this gateway's settings, and those that were made at run time."""
        self._require_operator(caller)
        await self._beat.beat()
        ours = [key_view(key) for key in self._settings.access_keys()]
        stored = [key_view(one.key, one) for _, one in sorted(self._beat.stored.items())]
        return json_response({"data": ours + [view for view in stored if not self._auth.declares(view["id"])]})

    async def revoke(self, key_id: str, request: Request, caller: CallerParam) -> Response:
        """Every gateway refuses the key within `within_s` seconds, and its open streams end."""
        self._require_operator(caller)
        self._refuse_declared(key_id, "Take it out of [[keys]] and restart its gateways")
        while True:
            stored = await self._stored(key_id)
            if stored is None:
                raise NotFound(f"there is no key {key_id[:64]!r}", hint="`penstock keys list` shows which there are.")
            if await self._store.run(registry.remove_key(stored)) == 1:
                break
        log.info("key_revoked", key=key_id, owner=stored.key.owner, **_who(request, caller))
        await self._beat.beat()
        return json_response({"id": key_id, "revoked": True, "within_s": KNOWN_WITHIN_S})

    def _require_operator(self, caller: Caller) -> None:
        """Tokens may not make keys: a token expires, but its key would not."""
        if not self._auth.keyed:
            raise Conflict(
                "this gateway has no keys: it serves every program on this machine",
                hint="Declare the first key in [[keys]]: `penstock keys new admin --role manage --toml` prints its lines.",
            )
        if caller.has_token:
            taken = self._settings.credentials()
            raise WrongRole(
                f"{taken.what if taken else 'tokens'} make no keys", hint="Use a key of [[keys]] with the role manage."
            )

    def _checked(self, given: Any, sha256: str) -> Key:
        if not isinstance(given, dict) or "sha256" in given:
            raise InvalidInput("the body is an object with `id` and `roles`; the gateway makes the secret itself")
        try:
            key = declared({**given, "sha256": sha256}).key()
            for check in self._checks:
                check(key)
            return key
        except ConfigError as wrong:
            raise InvalidInput("this key cannot be made", errors=[_fault(fault) for fault in wrong.faults]) from None

    async def _require_free(self, key_id: str) -> None:
        self._refuse_declared(key_id, "Choose another id")
        if await self._stored(key_id) is not None:
            raise Conflict(f"there is a key {key_id!r} already", hint=f"Choose another id, or `penstock keys revoke {key_id}`.")

    def _refuse_declared(self, key_id: str, instead: str) -> None:
        if self._auth.declares(key_id):
            raise Conflict(f"the key {key_id!r} is declared in the settings of this gateway", hint=f"{instead}.")

    async def _stored(self, key_id: str) -> StoredKey | None:
        return (await self._store.send(registry.stored_keys())).get(key_id)

    async def _put(self, made: StoredKey) -> None:
        answer = await self._store.run(registry.put_key(None, made))
        if answer == 0:
            raise Conflict(f"somebody else has just made the key {made.key.id!r}", hint="Choose another id.")
        if answer < 0:
            raise Overloaded(f"there are {MOST_KEYS} keys already", retry_after_s=60.0, hint="Revoke unused ones.")


def _make_schema() -> dict[str, Any]:
    """The schema with the settings that extensions add."""
    known = key_class().model_json_schema()["properties"]
    own = {
        name: {word: value for word, value in known[name].items() if word not in _OF_PYDANTIC} for name in added_key_settings()
    }
    return {**_MAKE, "properties": {**_MAKE["properties"], **own}}


def key_view(key: Key, made: StoredKey | None = None) -> Mapping[str, Any]:
    """The public view of a key. `made` None: it is declared in the settings."""
    return {
        "id": key.id,
        "owner": key.owner,
        "roles": sorted(key.roles),
        "rate_per_s": key.rate_per_s,
        "burst": key.burst,
        "max_open_jobs": key.max_open_jobs,
        "expires_at": None if key.expires_at is None else _moment(key.expires_at),
        **{name: key.extension_settings.get(name) or None for name in added_key_settings()},
        "source": "settings" if made is None else "store",
        "made_at": None if made is None else _moment(made.made_at),
        "made_by": None if made is None else made.made_by,
    }


def _fault(sentence: str) -> dict[str, str]:
    where, _, detail = sentence.partition(": ")
    return {"pointer": f"/{where.replace('.', '/')}", "detail": detail}


def _who(request: Request, caller: Caller) -> dict[str, str]:
    return {"by": caller.key_id, "address": request.client.host if request.client else ""}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
