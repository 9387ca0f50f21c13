"""Inference requests as jobs: checked, stored, waited for. What HTTP and gRPC have in common."""

# D83: docs/design/protocols.md
from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from penstock.errors import BadRequest, PenstockError
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.predict import PredictEndpoint, answer_deadline
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submitting.submitter import RawHeaders, SubmitRequest, request_of
from penstock.gateway.jobs.tensors import check_tensors
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
from penstock.gateway.oip.infer_answer import InferResult
from penstock.gateway.oip.infer_request import InferRequest, without_batch_axis
from penstock.gateway.oip.metadata import input_ports
from penstock.gateway.options import GatewayOptions
from penstock.gateway.telemetry.metrics import GatewayMetrics
from penstock.job import TENSORS_MEDIA, Payload
from penstock.tensors.tensor import TEXTS, Tensor, decode_tensors, encode_tensors, text_data

# What is larger is read and copied in a thread, so that others do not wait for it.
SMALL_BYTES = 256 * 1024
Complete = Callable[[SubmitRequest], SubmitRequest]


class Inference:
    """Runs one request as one job of its model."""

    def __init__(
        self,
        predict: PredictEndpoint,
        options: GatewayOptions,
        *,
        registry: ModelRegistry,
        results: ResultReader,
        metrics: GatewayMetrics,
    ) -> None:
        self._predict = predict
        self._options = options
        self._registry = registry
        self._results = results
        self._metrics = metrics

    async def find(self, model: str, version: str = "") -> tuple[ModelEntry, VersionEntry]:
        return await self._registry.find(model, version)

    async def answer(
        self,
        model: str,
        version: str,
        read: Callable[[VersionEntry], InferRequest],
        *,
        caller: Caller,
        connection: ClientConnection,
        headers: RawHeaders,
        size: int,
        complete: Complete,
    ) -> tuple[InferRequest, InferResult]:
        """The request that `read` makes, and its answer. `size` is that of the request in bytes; `complete` adds what the
        protocol carries beside it: a trace, an idempotency key.

        Raises as a prediction does: `NoAnswerYet`, `EndedWithoutOutput`, and `ClientGone` once the job is cancelled.
        """
        entry, chosen = await self._registry.find(model, version)
        try:
            steps = (read, entry, chosen, caller, headers)
            made = _prepared(*steps) if size <= SMALL_BYTES else await asyncio.to_thread(_prepared, *steps)
        except PenstockError as error:
            self._metrics.count_refusal(entry.name, error)
            raise
        request, submit, had_axis = made
        submit = complete(submit)
        deadline_s = answer_deadline(submit, self._options.sync_timeout_s)
        if not chosen.capacity.ready_slots:
            await self._predict.require_worker(submit)
        end = await self._predict.end_of(submit, connection, deadline_s)
        tensors = _output_tensors(await self._results.output(end))
        return request, InferResult(entry.name, chosen.name, end.id, tensors, had_axis)


def _prepared(
    read: Callable[[VersionEntry], InferRequest],
    entry: ModelEntry,
    version: VersionEntry,
    caller: Caller,
    headers: RawHeaders,
) -> tuple[InferRequest, SubmitRequest, bool]:
    """The request as one that can be stored. The data of its tensors is copied once."""
    request = read(version)
    tensors, had_axis = without_batch_axis(request.tensors, input_ports(version))
    check_tensors(tensors, version)
    _refuse_unknown(request, entry)
    payload, options = Payload(TENSORS_MEDIA, encode_tensors(tensors)), replace(request.options, query=request.more)
    submit = request_of(entry, version, payload, caller=caller, headers=headers, options=options)
    return replace(request, tensors=()), submit, had_axis


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
    return (Tensor("output", TEXTS, (1,), text_data([output.data]), output.content_type),)
