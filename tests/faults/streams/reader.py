"""One reader of one stream over HTTP, in either encoding: a cut connection is taken up again behind the last event heard."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.faults.face import Answer
from tests.faults.streams.heard import Heard

SSE = "text/event-stream"
LINES = "application/x-ndjson"
# A gateway says something every 15 s.
_SILENCE_S = 40.0
_CHUNK = 1 << 16

Event = tuple[str, str, Any]


class Stream:
    """An answer whose head has come. `status` 0: nobody answered."""

    def __init__(self, port: int, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SILENCE_S)
        self.status, self.job, self._response = 0, "", None
        try:
            self._connection.request(method, path, body, headers)
            self._response = self._connection.getresponse()
            self.status, self.job = self._response.status, self._response.headers.get("x-penstock-job", "")
        except (OSError, http.client.HTTPException):
            self.close()

    def close(self) -> None:
        self._connection.close()

    def refusal(self) -> Answer:
        """The whole answer, which is not a stream."""
        if self._response is None:
            return Answer(0)
        try:
            headers = {name.lower(): value for name, value in self._response.getheaders()}
            return Answer(self.status, self._response.read(), headers)
        except (OSError, http.client.HTTPException):
            return Answer(0)

    def events(self) -> Iterator[Event]:
        """Yield events until the connection ends, in order or not. What was cut in the middle of an event is no event."""
        assert self._response is not None
        is_sse = self._response.headers["content-type"].startswith(SSE)
        separator, parse = (b"\n\n", _from_sse) if is_sse else (b"\n", _from_line)
        rest = b""
        try:
            while data := self._response.read1(_CHUNK):
                *whole, rest = (rest + data).split(separator)
                yield from (event for text in whole if (event := parse(text)) is not None)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return


def _from_sse(text: bytes) -> Event | None:
    fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if not line.startswith(":"))
    return (fields["event"], fields["id"], json.loads(fields["data"])) if "event" in fields else None


def _from_line(text: bytes) -> Event | None:
    found = json.loads(text) if text.strip() else None
    return (found["event"], found["id"], found["data"]) if found else None


def hear(stream: Stream, heard: Heard, *, is_enough: Callable[[], bool] = lambda: False) -> Any:
    """Listen until the end, the end of the connection, or `is_enough`. Returns the result, if the end has one."""
    heard.since_cut = 0
    try:
        for name, event_id, data in stream.events():
            heard.take(name, event_id, data)
            if name == "end":
                return data.get("result")
            if is_enough():
                return None
    except TimeoutError:
        heard.faults.append(f"nothing was said for {_SILENCE_S:g} s")
    finally:
        stream.close()
        heard.since_cut = 0
    return None


def events_stream(port: int, job: str, heard: Heard, accept: str) -> Stream:
    behind = {"last-event-id": heard.last_id} if heard.last_id else {}
    return Stream(port, "GET", f"/v1/jobs/{job}/events", {"accept": accept, **behind})
