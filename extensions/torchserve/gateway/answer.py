"""Outputs as TorchServe answers with them: the handler's status, headers and media type, and the headers of every reply."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.broker.records import Push
from penstock.broker.store.aio import AsyncStore
from penstock.extensions.torchserve.gateway.errors import TorchServeError
from penstock.extensions.torchserve.gateway.replies import FIXED_HEADERS, JSON_HEADER
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.content import HANDLER_STATUS, file_headers, response_to
from penstock.gateway.asgi.negotiation import JSON, Head, trace_header
from penstock.gateway.asgi.problems import EndedWithoutOutput, Headers
from penstock.gateway.asgi.wire import NOSNIFF, Scope, Send
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.predict import PredictEndpoint, server_timing
from penstock.gateway.jobs.results import ResultReader, ended, first_is_gone
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.job import JobId
from penstock.outputs.response_head import BODILESS, ResponseHead, split_head

_OK = ResponseHead()
_UNTYPED = ResponseHead(untyped=True)
# Members of the chunks that a handler of TorchServe's writes: bytes, and what it says of the response.
_BYTES, _HEAD = "$bytes", "$head"
# On our own routes the status is a header; here it is the status.
_NOT_HERE = frozenset({HANDLER_STATUS.encode()})


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that was stored as a job, and where its answer goes. `started`: monotonic, by `time.perf_counter`."""

    request: SubmitRequest
    scope: Scope
    send: Send
    head: Head
    started: float

    def headers(self, job: JobId) -> Headers:
        """The headers of an answer beside those of its body."""
        return [
            (b"x-request-id", self.head[b"x-request-id"]),
            *FIXED_HEADERS,
            (b"x-penstock-job", str(job).encode("ascii")),
            (b"x-penstock-version", self.request.version.name.encode("ascii")),
            *trace_header(self.request.trace),
        ]

    def timing(self, end: Push) -> tuple[bytes, bytes]:
        return b"server-timing", server_timing(end.batch, time.perf_counter() - self.started)

    def word(self, phrase: str) -> None:
        """Give the response this reason phrase."""
        connection_of(self.scope).phrase = phrase.encode("latin-1")


class TorchServeAnswers:
    """Sends the end of a job, or the chunks of a running one. `reading`: the permit of a client that reads a large answer."""

    def __init__(
        self,
        predict: PredictEndpoint,
        *,
        store: AsyncStore,
        results: ResultReader,
        reading: Callable[[Caller], AbstractContextManager[None]],
        most_bytes: int | None,
    ) -> None:
        self._predict = predict
        self._store = store
        self._results = results
        self._reading = reading
        self._most_bytes = most_bytes

    async def send(self, waiting: WaitingRequest, end: Push) -> int:
        """Returns the status that was sent. Raises `EndedWithoutOutput`, and `TorchServeError` for too long an answer."""
        output = end.output
        if output is None or output.blob or output.content_type != JSON:
            return await self._send_content(waiting, end)
        check_size(len(output.data), end.id, most=self._most_bytes)
        waiting.word("")
        length = (b"content-length", b"%d" % len(output.data))
        headers = [JSON_HEADER, length, NOSNIFF, *waiting.headers(end.id), waiting.timing(end)]
        await wire.answer(waiting.send, 200, headers, output.data)
        return 200

    async def _send_content(self, waiting: WaitingRequest, end: Push) -> int:
        """Any output but a small one in JSON."""
        accept = waiting.head.get(b"accept", b"").decode("latin-1")
        content = await self._results.content(end, accept=accept, refusal=EndedWithoutOutput)
        check_size(content.reader.size, end.id, most=self._most_bytes)
        response, said = response_to(content, None), content.said or _OK
        response.status_code = said.status
        response.raw_headers = [*_typed(response.raw_headers, said), *waiting.headers(end.id), waiting.timing(end)]
        waiting.word(said.phrase)
        if said.status in BODILESS:
            await wire.answer(waiting.send, said.status, response.raw_headers, b"")
            return said.status
        with self._reading(waiting.request.caller):
            await response(waiting.scope, _hear_nothing, waiting.send)
        return said.status

    async def send_chunks(self, waiting: WaitingRequest, deadline_s: float) -> int:
        """The chunks of the job as they come, or its output if the handler writes none. Returns the status that was sent.

        An error behind the first chunk cuts the connection: the client can tell the answer from a whole one.
        """
        status = 0
        async for job, chunk in self._predict.chunks(waiting.request, connection_of(waiting.scope), deadline_s):
            if not status and not chunk:
                return await self._send_end_of(waiting, job)
            value = orjson.loads(chunk) if chunk else ""
            stored_type = head_in(value)
            if not status:
                status = await _begin(waiting, job, stored_type)
            if not stored_type:
                body = b"" if status in BODILESS else bytes_in(value)
                await waiting.send({"type": "http.response.body", "body": body, "more_body": bool(chunk)})
        return status

    async def _send_end_of(self, waiting: WaitingRequest, job: JobId) -> int:
        record = await self._store.read(job)
        if record is None:
            raise first_is_gone(job)
        return await self.send(waiting, ended(record))


async def _begin(waiting: WaitingRequest, job: JobId, stored_type: str) -> int:
    """Send the head of a chunked response. Without a media type of its handler it is untyped, as in TorchServe."""
    said = split_head(stored_type)[1] or (_OK if stored_type else _UNTYPED)
    typed = [(name.encode("ascii"), value.encode("latin-1")) for name, value in file_headers(stored_type).items()]
    waiting.word(said.phrase)
    headers = [*_typed(typed, said), *waiting.headers(job)]
    await waiting.send({"type": "http.response.start", "status": said.status, "headers": headers})
    return said.status


def _typed(headers: Headers, said: ResponseHead) -> Headers:
    """The headers of a body, without its media type if the handler named none; without both if there is no body."""
    left_out = _NOT_HERE | {b"content-type"} if said.untyped else _NOT_HERE
    if said.status in BODILESS:
        left_out = _NOT_HERE | {b"content-type", b"content-length"}
    return [header for header in headers if header[0] not in left_out]


def check_size(size: int, job: JobId, *, most: int | None) -> None:
    """Raises `TorchServeError` for an answer that is longer than the settings allow."""
    if most is not None and size > most:
        text = f"the answer of job {job} has {size} bytes; torchserve.max_response_bytes allows {most}"
        raise TorchServeError(507, "InternalServerException", text)


def head_in(value: Any) -> str:
    """The media type, as stored with an output, that a chunk names for the response; empty if it names none."""
    return value[_HEAD] if isinstance(value, dict) and value.keys() == {_HEAD} else ""


def bytes_in(value: Any) -> bytes:
    """The bytes that a chunk stands for: a text is sent as it is, other values are as TorchServe writes JSON."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {_BYTES}:
        return b64decode(value[_BYTES])
    # Python's own library, as in TorchServe: text beyond ASCII is escaped, and fractions are written in its way.
    return json.dumps(value, indent=2).encode()


async def _hear_nothing() -> dict[str, Any]:
    raise RuntimeError("an answer reads nothing of its request")
