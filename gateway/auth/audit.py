"""The audit log: each act of an operator is written down before it is done, and how it ended afterwards."""

# D119: docs/design/gateway.md
from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import structlog
from fastapi import Request

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.audit import Act, end_act, note_act
from penstock.errors import PenstockError, StoreUnavailable
from penstock.gateway.asgi.problems import status_of
from penstock.gateway.auth.roles import CallerParam

log = structlog.get_logger(__name__)
OUTCOME_LOST = "audit_outcome_lost"

_MODEL = "/v1/models/{model}"
_VERSION = f"{_MODEL}/versions/{{version}}"
# What is written down. Single jobs that programs submit, cancel and replay are not: the log of jobs has them.
ACTS: dict[tuple[str, str], str] = {
    ("POST", f"{_MODEL}/versions"): "load version",
    ("DELETE", _VERSION): "unload version",
    ("DELETE", _MODEL): "unload model",
    ("PUT", f"{_MODEL}/default"): "switch default",
    ("PUT", f"{_MODEL}/workers"): "scale",
    ("DELETE", f"{_MODEL}/rollout"): "undo changes",
    ("PUT", f"{_MODEL}/split"): "split",
    ("DELETE", f"{_MODEL}/split"): "end split",
    ("POST", f"{_MODEL}/profile"): "profile",
    ("POST", f"{_MODEL}/pause"): "pause",
    ("POST", f"{_MODEL}/resume"): "resume",
    ("PUT", f"{_MODEL}/limits"): "change limits",
    ("POST", f"{_MODEL}/purge"): "purge",
    ("POST", "/v1/workers/{worker}/drain"): "drain worker",
    ("POST", "/v1/workers/{worker}/resume"): "resume worker",
    ("POST", "/v1/keys"): "make key",
    ("DELETE", "/v1/keys/{key_id}"): "revoke key",
    ("POST", "/v1/jobs:cancel"): "cancel tag",
    ("POST", "/v1/runs:cancel"): "cancel tag",
    ("POST", "/v1/failed:dismiss"): "dismiss failed",
    ("POST", "/v1/failed:replay"): "replay failed",
    ("POST", "/v1/webhooks/replay"): "replay events",
    ("POST", "/v1/webhooks/dismiss"): "dismiss events",
    ("POST", "/v2/repository/models/{model}/load"): "load model",
    ("POST", "/v2/repository/models/{model}/unload"): "unload model",
    ("POST", "/ui/jobs/{job_id}/cancel"): "cancel job",
    ("POST", "/ui/jobs/{job_id}/replay"): "replay job",
    ("POST", "/ui/runs/{run_id}/cancel"): "cancel run",
    ("POST", "/ui/failed/replay"): "replay failed",
    ("POST", "/ui/failed/dismiss"): "dismiss failed",
    ("POST", "/ui/webhooks/replay"): "replay events",
    ("POST", "/ui/webhooks/dismiss"): "dismiss events",
    ("POST", "/ui/models/{model}/pause"): "pause",
    ("POST", "/ui/models/{model}/resume"): "resume",
    ("POST", "/ui/models/{model}/scale"): "scale",
    ("POST", "/ui/models/{model}/limits"): "change limits",
    ("POST", "/ui/models/{model}/purge"): "purge",
    ("POST", "/ui/workers/{worker}/drain"): "drain worker",
    ("POST", "/ui/workers/{worker}/resume"): "resume worker",
}
_MOST_SAID, _MOST_CHARS = 12, 200


class AuditLog:
    """Notes acts in the store. An act that cannot be noted is refused, so that none is done that nobody can find."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def note(self, request: Request, caller: CallerParam) -> None:
        """The dependency of every route: notes the request if it is an act. Raises `StoreUnavailable`."""
        name = ACTS.get((request.method, request.scope["route"].path))
        if name is None:
            return
        on = {key: value[:_MOST_CHARS] for key, value in request.path_params.items()}
        address = request.client.host if request.client else ""
        act = Act(name, caller.key_id, address, on, said_of(request.query_params))
        request.scope["act"] = (await self.begin(act), act)

    async def begin(self, act: Act) -> int:
        """The number of the act, which is written down from now on. Raises `StoreUnavailable`."""
        try:
            return await self._store.run(note_act(act))
        except StoreUnavailable as away:
            raise StoreUnavailable(f"nothing was changed, because the audit log cannot be written: {away.message}") from away

    async def end(self, scope: Mapping[str, Any], status: int) -> None:
        """Write down how the act of this request ended, if it is one. If the store is away, its outcome stays unknown."""
        if "act" not in scope:
            return
        number, act = scope["act"]
        await self._finish(number, act, scope, status)

    @asynccontextmanager
    async def noted(self, act: Act, scope: Mapping[str, Any]) -> AsyncIterator[None]:
        """For what comes over another protocol. Raises `StoreUnavailable` before anything is done."""
        number = await self.begin(act)
        try:
            yield
        except BaseException as error:
            await self._finish(number, act, scope, status_of(error) if isinstance(error, PenstockError) else 500)
            raise
        await self._finish(number, act, scope, 200)

    async def _finish(self, number: int, act: Act, scope: Mapping[str, Any], status: int) -> None:
        """Members of a body, which is read after the act has begun, are in `scope["said"]`."""
        act = replace(act, said={**act.said, **said_of(scope.get("said", {}))})
        outcome = outcome_of(status)
        try:
            await self._store.run(end_act(number, act, outcome))
        except StoreUnavailable as away:
            log.error(OUTCOME_LOST, number=number, act=act.act, by=act.by, outcome=outcome, reason=away.message)


def outcome_of(status: int) -> str:
    if status < 400:
        return "done"
    return f"{'refused' if status < 500 else 'failed'} {status}"


def said_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request as the log keeps them: few, short, and no query of a URL, because that may hold a key."""
    kept = list(fields.items())[:_MOST_SAID]
    return {str(name)[:_MOST_CHARS]: _short(value) for name, value in kept if value not in ("", None)}


def _short(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text.partition("?")[0][:_MOST_CHARS]
