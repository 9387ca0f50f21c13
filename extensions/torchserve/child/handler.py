"""A handler of an archive as one of ours: each call of `handle` is a call of `inference` (D96)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from math import inf
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.archives.opening import OpenedArchive
from penstock.extensions.torchserve.child.context import ALONE, RequestHeaders, TorchServeContext
from penstock.extensions.torchserve.child.envelopes import ENVELOPES
from penstock.extensions.torchserve.child.errors import PredictionException, needs_gpu, no_gpu, prediction_failure
from penstock.extensions.torchserve.child.options import ArchiveOptions
from penstock.extensions.torchserve.child.outputs import answers
from penstock.extensions.torchserve.child.resolve import EntryPoint, missing_here
from penstock.extensions.torchserve.child.row_notes import FirstRequest, NotingHandle, ReadsOneRow
from penstock.extensions.torchserve.child.streaming import ChunkSender
from penstock.extensions.torchserve.child.surface.metrics import ArchiveMetrics, metrics_of
from penstock.handlers.contract import Context, Handler, OfNoJob, Request

_TRUE = "True"
# The rows of this envelope are the inputs of one call, not requests of a batch.
_OF_ONE_CALL = "kservev2"
# An event of the worker's log.
ONE_BY_ONE = "torchserve_runs_one_by_one"


class ArchiveHandler(Handler):
    """`handle` is called as TorchServe calls it: rows and the context in, one entry per request out.

    `one_by_one`: why a call has one row only; empty if it may have as many as a batch. A handler that looks at one request of
    a batch only shows it at the first one: what it answered is dropped, and from then on it gets one row at a time (D130).
    """

    def __init__(
        self,
        entry: EntryPoint,
        archive: OpenedArchive,
        options: ArchiveOptions,
        *,
        one_by_one: str = "",
        sends_chunks: bool = False,
    ) -> None:
        self._entry = entry
        self._archive = archive
        self._options = options
        self._notes = NotingHandle(entry.handle)
        self._first = FirstRequest()
        inner = entry.handle if options.service_envelope == _OF_ONE_CALL else self._notes
        self._handle = ENVELOPES[options.service_envelope](inner).handle if options.service_envelope else self._notes
        self._is_one_by_one = bool(one_by_one)
        self.sends_chunks = sends_chunks
        if one_by_one:
            self.call_bounds, self.warnings = (1, inf), ((ONE_BY_ONE, one_by_one),)

    def initialize(self, context: Context, /) -> None:
        self._running = context.running
        self._metrics = _metrics(context, self._options)
        self._context = _context(context, self._archive, self._options, self._metrics)
        try:
            self._entry.initialize(self._context)
        except Exception as error:
            if needs_gpu(error) and context.device == "cpu":
                raise no_gpu(f"{self._entry.label}'s initialize", error) from error
            if isinstance(error, ImportError) and (missing := missing_here(self._archive)):
                raise HandlerLoadError(f"{self._entry.label}'s initialize: {error}{missing}") from error
            raise

    def inference(self, batch: list[Request[Any]], /) -> list[Any]:
        headers = [_headers(request) for request in batch]
        alone = [place for place, own in enumerate(headers) if _is_alone(own)]
        if not alone or len(batch) == 1:
            return self._call(batch, headers)
        outputs: list[Any] = [None] * len(batch)
        rest = [place for place in range(len(batch)) if place not in alone]
        for places in [rest, *([place] for place in alone)] if rest else [[place] for place in alone]:
            with self._running.among(places):
                part_outputs = self._call([batch[place] for place in places], [headers[place] for place in places])
            for place, output in zip(places, part_outputs, strict=True):
                outputs[place] = output
        return outputs

    def explain(self, batch: list[Request[Any]], /) -> list[Any]:
        """One by one, because handlers explain only the first request of a batch."""
        outputs = []
        for place, request in enumerate(batch):
            with self._running.among([place]):
                outputs += self._call([request], [RequestHeaders({**_headers(request), "explain": _TRUE})])
        return outputs

    def _call(self, batch: Sequence[Request[Any]], headers: Sequence[RequestHeaders]) -> list[Any]:
        """Raises `ReadsOneRow` for several rows of a handler that takes one: the worker halves the call down to single rows."""
        self._refuse_several(batch)
        context = self._context
        context.begin([_id(request, own) for request, own in zip(batch, headers, strict=True)], headers)
        self._metrics.request_ids = context.request_ids
        processors = context.request_processor
        context.sender = sender = ChunkSender(self._running, processors, self._notes.refuse_to_send)
        began = time.perf_counter()
        try:
            returned = self._handle([request.input.take() for request in batch], context)
        except PredictionException as error:
            if len(batch) > 1:
                # Halving the batch shows which request is at fault.
                raise
            return [prediction_failure(error)]
        finally:
            self._first.on_call(context)
        self._refuse_several(batch)
        self._metrics.add_time("PredictionTime", round((time.perf_counter() - began) * 1000, 2), None, "ms")
        return sender.outputs(answers(returned, processors))

    def _refuse_several(self, batch: Sequence[Request[Any]]) -> None:
        why = self._notes.why or self._first.why
        if why and not self._is_one_by_one:
            self._is_one_by_one, self.call_bounds = True, (1, inf)
            sys.stderr.write(f"{ONE_BY_ONE}: {why}; its rows run one by one from now on\n")
        # The rows of a warm-up are copies of one, and no caller gets their answers.
        if len(batch) > 1 and (why or self._first.is_on_trial) and not isinstance(self._running.told, OfNoJob):
            raise ReadsOneRow(why)


def _is_alone(headers: RequestHeaders) -> bool:
    return any(headers.get(name) == _TRUE for name in ALONE)


def _headers(request: Request[Any]) -> RequestHeaders:
    return RequestHeaders({**request.input.media_types, "explain": "False", "url_path": "", **request.headers})


def _id(request: Request[Any], headers: RequestHeaders) -> str:
    return str(headers.get("x-request-id") or request.job)


def _metrics(context: Context, options: ArchiveOptions) -> ArchiveMetrics:
    return metrics_of(context.metrics, context.model, options.metrics, lines=options.metrics_log)


def _context(context: Context, archive: OpenedArchive, options: ArchiveOptions, metrics: ArchiveMetrics) -> TorchServeContext:
    return TorchServeContext(
        context.model,
        archive.folder,
        archive.manifest.whole,
        context.max_batch_size,
        gpu_index(context.device),
        limit_max_image_pixels=options.limit_max_image_pixels,
        metrics=metrics,
        model_yaml_config=archive.config,
    )


def gpu_index(device: str) -> int | None:
    """TorchServe's `gpu_id`: the index among the devices that the process sees; None on a CPU."""
    kind, _, index = device.partition(":")
    return int(index or 0) if kind == "cuda" else None
