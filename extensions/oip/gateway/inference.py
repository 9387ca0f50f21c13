"""Inference requests as jobs: checked, stored, waited for. What HTTP and gRPC have in common."""

# D83: docs/design/protocols.md
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from penstock.errors import BadRequest
from penstock.extensions.oip.gateway.infer_answer import InferResult
from penstock.extensions.oip.gateway.infer_request import InferRequest, without_batch_axis
from penstock.extensions.oip.gateway.metadata import input_ports
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.asgi.negotiation import JSON, Head
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.predict import answer_deadline
from penstock.gateway.jobs.submitting.draft import Draft, RawHeaders, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.gateway.jobs.tensors import check_tensors
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.models.slots import why_unserved
from penstock.gateway.services import Services
from penstock.job import TENSORS_MEDIA, Payload
from penstock.outputs.media import without_head
from penstock.tensors.tensor import TEXTS, Tensor, decode_tensors, encode_tensors, tensor_of_plain, text_data

# A larger body is read and copied in a thread, so that other requests do not wait for it.
SMALL_BYTES = 256 * 1024
# A deadline that has just passed. The store takes no shorter one.
_LEAST_S = 0.001
ReadRequest = Callable[[VersionEntry], InferRequest]


@dataclass(frozen=True, slots=True)
class InferCaller:
    """The caller, its connection, and the request's headers or metadata: all of them, and those that the gateway reads. `scope`
    receives the request's trace. `within_s`: how long the caller waits, if it says so.
    """

    caller: Caller
    connection: ClientConnection
    headers: RawHeaders
    head: Head
    scope: dict[str, Any] = field(default_factory=dict)
    within_s: float | None = None

    def bounded(self, deadline_s: float) -> float:
        """The deadline in seconds of a job whose caller waits for `within_s` at most."""
        return deadline_s if self.within_s is None else max(_LEAST_S, min(deadline_s, self.within_s))


class Inference:
    """Runs one request as one job of its model."""

    def __init__(self, services: Services) -> None:
        self._predict = services.predict
        self._submitter = services.submitter
        self._sync_timeout_s = services.settings.gateway.sync_timeout_s
        self._registry = services.registry
        self._results = services.results

    async def find(self, model: str, version: str = "") -> tuple[ModelEntry, VersionEntry]:
        return await self._registry.find(model, version)

    async def unready(self, model: str, version: str = "") -> str:
        """Why the version is not ready, in a sentence; empty if it is. Raises `NotFound`."""
        entry, served = await self._registry.find(model, version)
        if not served.capacity.ready_slots:
            await self._registry.look_again()
            entry, served = await self._registry.find(model, version)
        if served.capacity.ready_slots:
            return ""
        why = why_unserved(self._registry.workers, entry.name, served)
        return f"model {entry.name!r} version {served.name!r} is not ready: {why}"

    async def answer(
        self, model: str, version: str, read: ReadRequest, asking: InferCaller, *, size: int
    ) -> tuple[InferRequest, InferResult]:
        """The request that `read` makes, and its answer. `size` is that of the request in bytes.

        Raises as a prediction does: `NoAnswerYet`, `EndedWithoutOutput`, and `ClientGone` once the job is cancelled.
        """
        request, submit, had_axis = await self._prepare(model, version, read, asking, size)
        del read  # it holds the body, which the job has now
        deadline_s = asking.bounded(answer_deadline(submit, self._sync_timeout_s))
        if not submit.version.capacity.ready_slots:
            await self._predict.require_worker(submit)
        end = await self._predict.end_of(submit, asking.connection, deadline_s)
        tensors = _output_tensors(await self._results.output(end))
        return request, InferResult(submit.model.name, end.version or submit.version.name, end.id, tensors, had_axis)

    async def chunks(
        self, model: str, version: str, read: ReadRequest, asking: InferCaller, *, size: int
    ) -> AsyncIterator[tuple[InferRequest, InferResult]]:
        """The answers of a model that streams: one per chunk, and one without tensors at the end.

        Raises as `answer` does, and `EndedWithoutOutput` if the model was run again after some of them.
        """
        request, submit, _ = await self._prepare(model, version, read, asking, size)
        del read
        deadline_s = asking.bounded(answer_deadline(submit, submit.model.info.limits.deadline_s))
        if not submit.version.capacity.ready_slots:
            await self._predict.require_worker(submit)
        async for job, chunk in self._predict.chunks(submit, asking.connection, deadline_s):
            tensors = chunk_tensors(chunk) if chunk else ()
            yield request, InferResult(submit.model.name, submit.version.name, job, tensors)

    async def _prepare(
        self, model: str, version: str, read: ReadRequest, asking: InferCaller, size: int
    ) -> tuple[InferRequest, SubmitRequest, bool]:
        reading = _InferReading(read, is_large=size > SMALL_BYTES)
        draft = Draft(
            model=model,
            version=version,
            caller=asking.caller,
            kind="infer",
            is_awaited=True,
            input=reading.input,
            options=reading.options,
            headers=asking.headers,
            head=asking.head,
            scope=asking.scope,
            keeps_body=False,
        )
        submit = await self._submitter.prepare(draft)
        return replace(reading.request, tensors=()), submit, reading.had_axis


class _InferReading:
    """One request while it is read: its options stand beside its tensors."""

    def __init__(self, read: ReadRequest, *, is_large: bool) -> None:
        self._read = read
        self._is_large = is_large
        self._version: VersionEntry | None = None
        self.request = InferRequest(())
        self.had_axis = False

    async def options(self, entry: ModelEntry, version: VersionEntry) -> SubmitOptions:
        self.request, self._version = await self._run(self._read, version), version
        _refuse_unknown(self.request, entry)
        return replace(self.request.options, query=self.request.more)

    async def input(self, version: VersionEntry) -> Payload:
        if version is not self._version:
            # A raw body is the tensor that this version names.
            self.request = await self._run(self._read, version)
        payload: Payload = await self._run(self._payload, version)
        return payload

    async def _run(self, step: Callable[[VersionEntry], Any], version: VersionEntry) -> Any:
        return await asyncio.to_thread(step, version) if self._is_large else step(version)

    def _payload(self, version: VersionEntry) -> Payload:
        """The data of the tensors is copied once."""
        tensors, self.had_axis = without_batch_axis(self.request.tensors, input_ports(version))
        check_tensors(tensors, version)
        return Payload(TENSORS_MEDIA, encode_tensors(tensors))


def _refuse_unknown(request: InferRequest, entry: ModelEntry) -> None:
    for name in request.more:
        if name not in entry.info.query:
            raise BadRequest(
                f"model {entry.name!r} takes no parameter {name[:80]!r}",
                hint="The model's setting `query` lists the parameters that its handler is given.",
            )


def _output_tensors(output: Payload) -> tuple[Tensor, ...]:
    """The output as tensors. A worker of an older release, or one that streams, may have written something else."""
    if output.content_type == TENSORS_MEDIA:
        return tuple(decode_tensors(output.data))
    return (Tensor("output", TEXTS, (1,), text_data([output.data]), without_head(output.content_type)),)


def chunk_tensors(chunk: bytes) -> tuple[Tensor, ...]:
    """The tensors of a chunk in JSON, as those of an output: one per member of an object, else one named `output`."""
    value = orjson.loads(chunk)
    members = value if isinstance(value, dict) and value else {"output": value}
    return tuple(
        tensor_of_plain(name, member) or Tensor(name, TEXTS, (1,), text_data([orjson.dumps(member)]), JSON)
        for name, member in members.items()
    )
