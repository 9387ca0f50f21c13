"""InferenceAPIsService: predictions in TorchServe's messages, each a job as over HTTP."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson

from penstock.broker.records import Push
from penstock.errors import PenstockError
from penstock.extensions.torchserve.gateway.answer import bytes_in, check_size, head_in
from penstock.extensions.torchserve.gateway.errors import bad_request
from penstock.extensions.torchserve.gateway.request import of_version
from penstock.extensions.torchserve.gateway.routes import TorchServeTarget
from penstock.extensions.torchserve.grpc.messages import (
    CODES,
    INFERENCE,
    POOL,
    PREDICTIONS_REQUEST,
    fields_of,
    prediction_message,
    refusal_message,
    without_input,
    worded,
)
from penstock.extensions.torchserve.served import Ping
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.asgi.problems import EndedWithoutOutput, request_id_of
from penstock.gateway.asgi.wire import ClientGone
from penstock.gateway.auth.keys import Shares
from penstock.gateway.jobs.predict import answer_deadline
from penstock.gateway.jobs.results import ended, first_is_gone
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.jobs.submitting.form_input import input_of
from penstock.gateway.models.registry import VersionEntry
from penstock.gateway.rpc.guard import Rpc, RpcGuard, RpcMethod
from penstock.gateway.rpc.pool import parsed
from penstock.gateway.rpc.refusals import refusal_of
from penstock.gateway.rpc.streams import RequestStreams
from penstock.gateway.services import Services
from penstock.job import JobId, Payload

_PREDICT = "/predictions/{model}"
# A call with less time than this is late anyway, so no job is made for it.
_LEAST_S = 0.001


class InferenceApis:
    """`streams`: the permits that streams of calls take."""

    def __init__(self, services: Services, own: TorchServeSettings, guard: RpcGuard, *, streams: Shares) -> None:
        self._services = services
        self._own = own
        self._guard = guard
        self._predictions = services.predictions
        self._stream_permits = streams
        self.streams = RequestStreams(self._stream_answers, guard)

    def handlers(self) -> dict[str, Any]:
        guard, streams = self._guard, self._stream_permits
        return {
            "Ping": guard.unary(RpcMethod("Ping", "", None, codes=CODES), self._ping),
            "Predictions": guard.unary(_method("Predictions", self._predictions), self._predict),
            "StreamPredictions": guard.stream(_method("StreamPredictions", streams), self._stream),
            "StreamPredictions2": guard.stream(_method("StreamPredictions2", streams), self.streams.serve),
        }

    async def _ping(self, rpc: Rpc, message: bytes) -> bytes:
        health = bytes((await Ping(self._services.health).ping()).body).decode()
        return POOL.written(f"{INFERENCE}.TorchServeHealthResponse", health=health)

    async def _predict(self, rpc: Rpc, message: bytes) -> bytes:
        sent = parsed(PREDICTIONS_REQUEST, message)
        del message
        started = time.perf_counter()
        try:
            request = await self._request(rpc, sent)
            sent = without_input(sent)
            deadline_s = await self._deadline(rpc, request)
            end = await self._services.predict.end_of(request, rpc.connection, deadline_s)
            answer = prediction_message(await self._read(end), sent)
            self._count(sent, end, started)
            return answer
        except PenstockError as error:
            raise worded(error, _target(sent)) from error

    async def _stream(self, rpc: Rpc) -> None:
        """One request; its answers are the chunks that the model writes, or its one output."""
        await self._guard.until_gone(self._send_all(rpc, await self._guard.message(rpc)), rpc)

    async def _send_all(self, rpc: Rpc, message: bytes) -> None:
        sent = parsed(PREDICTIONS_REQUEST, message)
        answers = self._answers(rpc, sent, rpc.connection)
        del message
        sent = without_input(sent)
        try:
            async for data in answers:
                # If the caller has left, the loop goes on until the job is cancelled.
                if not rpc.connection.lost:
                    await rpc.context.write(prediction_message(data, sent))
        except PenstockError as error:
            raise worded(error, _target(sent)) from error

    async def _stream_answers(self, rpc: Rpc, message: bytes, connection: ClientConnection) -> AsyncIterator[bytes]:
        """The answers to one request of a stream. A refusal is an answer too, and the stream goes on."""
        sent = None
        try:
            caller = self._guard.admit(rpc.head, rpc.address)
            with self._guard.permit_in(self._predictions, caller):
                sent = parsed(PREDICTIONS_REQUEST, message)
                answers = self._answers(rpc, sent, connection)
                del message
                sent = without_input(sent)
                async for data in answers:
                    yield prediction_message(data, sent)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - one request of a stream fails alone
            shown = worded(error, _target(sent)) if isinstance(error, PenstockError) and sent is not None else error
            refusal = refusal_of(shown, method=rpc.method.name, given_id=rpc.head.get(b"x-request-id"), codes=CODES)
            yield refusal_message(refusal, sent)

    async def _answers(self, rpc: Rpc, sent: Any, connection: ClientConnection) -> AsyncIterator[bytes]:
        started = time.perf_counter()
        # The metadata of a stream belong to all of its requests.
        request = await self._request(rpc, sent, key="")
        sent = without_input(sent)
        deadline_s = await self._deadline(rpc, request)
        if request.version.info is None or not request.version.info.streams:
            end = await self._services.predict.end_of(request, connection, deadline_s)
            yield await self._read(end)
            self._count(sent, end, started)
            return
        has_chunks = False
        async for job, chunk in self._services.predict.chunks(request, connection, deadline_s):
            value = orjson.loads(chunk) if chunk else None
            if chunk and not head_in(value):
                has_chunks = True
                yield bytes_in(value)
            elif not chunk:
                end = await self._end_of(job)
                if not has_chunks:
                    yield await self._read(end)
                self._count(sent, end, started)

    def _count(self, sent: Any, end: Push, started: float) -> None:
        total_s = time.perf_counter() - started
        self._services.predict.count_answer(sent.model_name, sent.model_version, end.batch, total_s)

    async def _request(self, rpc: Rpc, prediction: Any, *, key: str | None = None) -> SubmitRequest:
        """`key`: replaces the one in the metadata."""
        services = self._services
        if not prediction.model_name:
            raise bad_request("Parameter model_name is required.")
        draft = Draft(
            model=prediction.model_name,
            version=prediction.model_version,
            caller=rpc.caller,
            kind=_PREDICT,
            is_awaited=True,
            input=partial(self._input, prediction),
            headers=rpc.headers,
            head=rpc.head,
            scope=rpc.scope,
            key=key,
            keeps_body=False,
        )
        settled = await services.submitter.settle(draft)
        services.predict.count_request(prediction.model_name, prediction.model_version)
        sent = rpc.head.get(b"x-request-id")
        request_id = request_id_of(sent) if sent else str(uuid.uuid4())
        return await services.submitter.prepare(of_version(draft, settled, _target(prediction), request_id.encode("ascii")))

    async def _input(self, sent: Any, version: VersionEntry) -> Payload:
        payload = await asyncio.to_thread(input_of, fields_of(sent), version, self._services.settings.gateway)
        if payload.content_type == JSON:
            await self._services.submitter.inputs.check(payload, version)
        return payload

    async def _deadline(self, rpc: Rpc, request: SubmitRequest) -> float:
        """Seconds that the answer may take: the model's limit, and not beyond the call's own. Raises `NoWorker`."""
        if not request.version.capacity.is_served:
            await self._services.predict.require_worker(request)
        deadline_s, left_s = answer_deadline(request, request.model.info.limits.deadline_s), rpc.remaining_s
        return deadline_s if left_s is None else max(_LEAST_S, min(deadline_s, left_s))

    async def _end_of(self, job: JobId) -> Push:
        record = await self._services.store.read(job)
        if record is None:
            raise first_is_gone(job)
        return ended(record)

    async def _read(self, end: Push) -> bytes:
        content = await self._services.results.content(end, refusal=EndedWithoutOutput)
        reader = content.reader
        check_size(reader.size, end.id, most=self._own.max_response_bytes)
        return await asyncio.to_thread(lambda: b"".join(reader.pieces(0, reader.size)))


def _method(name: str, permits: Shares) -> RpcMethod:
    return RpcMethod(name, _PREDICT, permits, "POST", CODES)


def _target(sent: Any) -> TorchServeTarget:
    return TorchServeTarget(_PREDICT, sent.model_name, sent.model_version)
