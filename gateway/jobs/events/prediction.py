"""POST /predictions/{model} with `Accept: text/event-stream` or `application/x-ndjson`: the job's events as its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.broker.records import Push
from penstock.broker.store.notifications import Waiter
from penstock.errors import CapacityError
from penstock.gateway.asgi.connection import ClientConnection, Lifetime
from penstock.gateway.asgi.negotiation import trace_header
from penstock.gateway.asgi.problems import EndedWithoutOutput
from penstock.gateway.asgi.wire import NOSNIFF, ClientGone, Send
from penstock.gateway.jobs.events.encoding import STREAM_HEADERS, EventEncoder
from penstock.gateway.jobs.events.follow import JobFollower
from penstock.gateway.jobs.events.told import ToldEvent
from penstock.gateway.jobs.results import ended_without_output
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.job import Job, JobId, JobState

_HEADERS = [(name.encode("ascii"), value.encode("ascii")) for name, value in STREAM_HEADERS.items()]


class StreamedPrediction:
    """Answers one request whose job is stored with the job's events. The last event, `end`, has the output as `result`."""

    def __init__(self, follower: JobFollower, lifetime: Lifetime) -> None:
        self._follower = follower
        self._lifetime = lifetime

    async def answer(
        self,
        job: JobId,
        waiter: Waiter,
        request: SubmitRequest,
        encoder: EventEncoder,
        send: Send,
        connection: ClientConnection,
    ) -> Job | None:
        """The job, which has ended; None if the gateway could not tell its end. Raises `ClientGone` if the client hangs up."""
        ended: Job | None = None
        connection.on_lost = waiter.wake
        await send({"type": "http.response.start", "status": 200, "headers": _head(job, request, encoder)})
        await self._send(send, encoder.first)
        try:
            events = self._follower.events(job, waiter, None, stop=lambda: self._is_over(connection), with_output=True)
            async for group in events:
                await self._send(send, await encoder.encode(group))
                ended = group[-1].ended if group else None
                if encoder.is_over:
                    break
        except CapacityError:
            # The status line has been sent. The client can go on with the events of the job.
            pass
        if connection.lost:
            raise ClientGone
        await send({"type": "http.response.body", "body": b""})
        return ended

    def _is_over(self, connection: ClientConnection) -> bool:
        return connection.lost or self._lifetime.is_last_call()

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def chunks_of(job: JobId, events: AsyncIterator[list[ToldEvent]]) -> AsyncIterator[bytes]:
    """The chunks of a job, each in JSON, and b"" once it has succeeded.

    Raises `EndedWithoutOutput` for another end, and if a new attempt began after some chunks: sent chunks cannot be withdrawn.
    """
    async for group in events:
        for event in group:
            if event.name in ("restart", "reset"):
                raise EndedWithoutOutput(
                    f"the model was run again after it had yielded; GET /v1/jobs/{job}/result will have the whole output",
                    job=job,
                    state=JobState.FAILED,
                    code="worker_lost",
                    retryable=True,
                )
            if event.name == "chunk":
                yield event.data
            elif event.ended is not None:
                end = Push.of_end(event.ended, None)
                if end is not None and end.state is not JobState.SUCCEEDED:
                    raise ended_without_output(end)
                yield b""


def _head(job: JobId, request: SubmitRequest, encoder: EventEncoder) -> list[tuple[bytes, bytes]]:
    media = (b"content-type", encoder.media_type.encode("ascii"))
    named = (b"x-penstock-job", str(job).encode("ascii")), (b"x-penstock-version", request.version.name.encode("ascii"))
    return [media, *named, NOSNIFF, *_HEADERS, *trace_header(request.trace)]
