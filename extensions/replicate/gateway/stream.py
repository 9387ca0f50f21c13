"""The stream of a prediction, in the four words that Replicate's clients know: output, logs, error, done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import orjson

from penstock.broker.store.aio import AsyncStore
from penstock.errors import CapacityError
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import WaitingResponses
from penstock.gateway.jobs.events.encoding import HEARTBEAT
from penstock.gateway.jobs.events.follow import JobFollower
from penstock.gateway.jobs.events.told import ToldEvent
from penstock.job import JobId

_RESTARTED = "the prediction was restarted, and its earlier output no longer counts; read it from the start"


class PredictionStream:
    """Translates the events of a job."""

    def __init__(self, store: AsyncStore, follower: JobFollower, *, lifetime: Lifetime, waiting: WaitingResponses) -> None:
        self._store = store
        self._follower = follower
        self._lifetime = lifetime
        self._waiting = waiting

    async def events(self, job: JobId, last_seen: str | None, caller: Caller) -> AsyncIterator[bytes]:
        with self._waiting.open(caller), self._store.waiter(job) as waiter:
            try:
                async for group in self._follower.events(job, waiter, last_seen, stop=self._lifetime.is_draining):
                    if not group:
                        yield HEARTBEAT
                    for event in group:
                        for told in translated(event):
                            yield told
                        if event.name in ("restart", "reset"):
                            return
            except CapacityError:
                # The status line has been sent. Closing the stream makes the client come back.
                return


def translated(event: ToldEvent) -> list[bytes]:
    """The event as the bytes of none, one or two of Replicate's."""
    translate = _WORDS.get(event.name)
    return translate(event) if translate is not None else []


def _end(event: ToldEvent) -> list[bytes]:
    job = orjson.loads(event.data)
    status = job["status"]
    if status == "failed":
        return [_event("error", event.id, job["error"]["message"]), _event("done", event.id, '{"reason":"error"}')]
    return [_event("done", event.id, "{}" if status == "succeeded" else '{"reason":"canceled"}')]


def _chunk(event: ToldEvent) -> list[bytes]:
    value = orjson.loads(event.data)
    return [_event("output", event.id, value if isinstance(value, str) else event.data.decode())]


def _progress(event: ToldEvent) -> list[bytes]:
    said = orjson.loads(event.data)
    return [_event("logs", event.id, f"{said['fraction']:.0%} {said['note']}".rstrip())]


def _restart(event: ToldEvent) -> list[bytes]:
    return [_event("error", event.id, _RESTARTED)]


_WORDS: dict[str, Callable[[ToldEvent], list[bytes]]] = {
    "chunk": _chunk,
    "progress": _progress,
    "restart": _restart,
    "reset": _restart,
    "end": _end,
}


def _event(name: str, event_id: str, text: str) -> bytes:
    """A text of several lines is several lines of data. A carriage return would end a line, too."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    data = "".join(f"data: {line}\n" for line in lines)
    return f"event: {name}\nid: {event_id}\n{data}\n".encode()
