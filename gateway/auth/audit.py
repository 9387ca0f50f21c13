"""The audit log: records each act of an operator before it is done, and its outcome afterwards."""

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
from penstock.gateway.auth.roles import CallerParam, rules_of

log = structlog.get_logger(__name__)
ACT_ENDED = "act_ended"
OUTCOME_LOST = "audit_outcome_lost"

_MOST_SAID, _MOST_CHARS = 12, 200


class AuditLog:
    """Records acts in the store. An act that cannot be recorded is refused, so that no act is missing from the log."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def note(self, request: Request, caller: CallerParam) -> None:
        """The dependency of every route: notes the request if it is an act. Raises `StoreUnavailable`."""
        name = rules_of(request).acts.get((request.method, request.scope["route"].path))
        if name is None:
            return
        on = {key: value[:_MOST_CHARS] for key, value in request.path_params.items()}
        address = request.client.host if request.client else ""
        act = Act(name, caller.key_id, address, on, said_of(request.query_params), owner=caller.only_owner or "")
        request.scope["act"] = (await self.begin(act), act)

    async def begin(self, act: Act) -> int:
        """Record the act and return its number. Raises `StoreUnavailable`."""
        try:
            return await self._store.run(note_act(act))
        except StoreUnavailable as away:
            raise StoreUnavailable(f"nothing was changed, because the audit log cannot be written: {away.message}") from away

    async def end(self, scope: Mapping[str, Any], status: int) -> None:
        """Record the outcome, if this request is an act. Without the store, the outcome stays unknown."""
        if "act" not in scope:
            return
        number, act = scope["act"]
        await self._finish(number, act, scope, status)

    @asynccontextmanager
    async def noted(self, act: Act, scope: Mapping[str, Any]) -> AsyncIterator[None]:
        """Records an act over another protocol. Raises `StoreUnavailable` before the act is done."""
        number = await self.begin(act)
        try:
            yield
        except BaseException as error:
            await self._finish(number, act, scope, status_of(error) if isinstance(error, PenstockError) else 500)
            raise
        await self._finish(number, act, scope, 200)

    async def _finish(self, number: int, act: Act, scope: Mapping[str, Any], status: int) -> None:
        """The body is read after the act has begun; its members are in `scope["said"]`."""
        act = replace(act, said={**act.said, **said_of(scope.get("said", {}))})
        outcome = outcome_of(status) if scope.get("changed", True) else ""
        if outcome:
            log.info(ACT_ENDED, number=number, act=act.act, by=act.by, address=act.address, on=act.on, outcome=outcome)
        try:
            await self._store.run(end_act(number, act, outcome))
        except StoreUnavailable as away:
            log.error(OUTCOME_LOST, number=number, act=act.act, by=act.by, outcome=outcome, reason=away.message)


def note_changes(request: Request, count: int) -> None:
    """Say how much an act has changed. An act that changed nothing leaves the log."""
    request.scope["changed"] = count > 0


def outcome_of(status: int) -> str:
    if status < 400:
        return "done"
    return f"{'refused' if status < 500 else 'failed'} {status}"


def said_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request for the log: few, short, and without a URL's query, which may hold a key."""
    kept = list(fields.items())[:_MOST_SAID]
    return {str(name)[:_MOST_CHARS]: _short(value) for name, value in kept if value not in ("", None)}


def _short(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text.partition("?")[0][:_MOST_CHARS]
