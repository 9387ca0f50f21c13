"""Events of jobs as bytes: server-sent events, or a line of JSON each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.gateway.jobs.events.told import ToldEvent

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
# These keep proxies from buffering events.
STREAM_HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": still here\n\n"


def sse_event(event: ToldEvent) -> bytes:
    name, event_id = event.name.encode("ascii"), event.id.encode("ascii")
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name, event_id, event.data)


def line(event: ToldEvent) -> bytes:
    return b'{"event":"%b","id":"%b","data":%b}\n' % (event.name.encode("ascii"), event.id.encode("ascii"), event.data)


class EventEncoder(Protocol):
    """Makes the bytes of one response. `first` is sent before all events; once `is_over`, no event follows."""

    @property
    def media_type(self) -> str: ...

    @property
    def first(self) -> bytes: ...

    @property
    def is_over(self) -> bool: ...

    async def encode(self, events: Sequence[ToldEvent]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Encoding:
    """`heartbeat` is sent after a silence. The response ends with the last event."""

    media_type: str
    event: Callable[[ToldEvent], bytes]
    first: bytes
    heartbeat: bytes
    is_over: bool = False

    async def encode(self, events: Sequence[ToldEvent]) -> bytes:
        """The events in one piece; the heartbeat if there are none."""
        return b"".join(map(self.event, events)) if events else self.heartbeat


_SSE = Encoding(SSE, sse_event, RETRY, HEARTBEAT)
# Readers of JSON lines skip empty lines.
_LINES = Encoding(NDJSON, line, b"", b"\n")


def encoding_for(accept: str) -> Encoding:
    """The encoding that an Accept header asks for; server-sent events unless it accepts only lines of JSON."""
    return _LINES if "ndjson" in accept and SSE not in accept else _SSE
