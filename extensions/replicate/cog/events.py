"""The events of a prediction's job in Cog's words: start, output, log, completed, error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from penstock.extensions.replicate.gateway.views import logs_line
from penstock.gateway.jobs.events.encoding import HEARTBEAT, SSE
from penstock.gateway.jobs.events.told import ToldEvent
from penstock.job import Job

_RESTARTED = "the prediction was restarted, and its earlier output no longer counts; read it from the start"
# Gives the prediction of a job that has ended.
View = Callable[[Job], Awaitable[dict[str, Any]]]


class CogEvents:
    """Makes the bytes of one response. Cog has no event for a restarted stream, so such a stream ends with an error."""

    media_type = SSE
    first = b""

    def __init__(self, prediction_id: str, view: View) -> None:
        self._id = prediction_id
        self._view = view
        self._has_started = False
        self._index = 0
        self.is_over = False

    async def encode(self, events: Sequence[ToldEvent]) -> bytes:
        return b"".join([await self._encode_one(event) for event in events]) if events else HEARTBEAT

    async def _encode_one(self, event: ToldEvent) -> bytes:
        if self.is_over:
            return b""
        if event.ended is not None:
            self.is_over = True
            return self._start() + _event("completed", orjson.dumps(await self._view(event.ended)))
        if event.name in ("restart", "reset"):
            self.is_over = True
            return _event("error", orjson.dumps({"error": _RESTARTED}))
        if event.name == "chunk":
            index, self._index = self._index, self._index + 1
            return self._start() + _event("output", b'{"chunk":%b,"index":%d}' % (event.data, index))
        said = orjson.loads(event.data)
        if event.name == "progress":
            line = logs_line(said["fraction"], said["note"])
            return self._start() + _event("log", orjson.dumps({"source": "stderr", "data": f"{line}\n"}))
        return self._start() if said.get("status") == "running" else b""

    def _start(self) -> bytes:
        """The event that comes before all others, once."""
        if self._has_started:
            return b""
        self._has_started = True
        return _event("start", orjson.dumps({"id": self._id, "status": "processing"}))


def _event(name: str, data: bytes) -> bytes:
    """JSON has no line ends of its own."""
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), data)
