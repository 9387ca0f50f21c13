"""What a handler sends before its answers: the chunks of its requests' streams (D96)."""

# D72: docs/design/streams.md
from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.extensions.torchserve.child.context import RequestProcessor, TorchServeContext
from penstock.extensions.torchserve.child.errors import BAD_LENGTH, BadHandlerOutput
from penstock.extensions.torchserve.child.outputs import HandlerAnswer, answer, content_type_of, plain_bytes, response_head
from penstock.handlers.contract import Failure
from penstock.handlers.running.call import RunningCall
from penstock.handlers.running.streaming import ItemStream, items_of_call
from penstock.outputs.response_head import with_head

_UNTYPED = "application/octet-stream"
_NO_JSON = re.compile(rb"NaN|Infinity")


def send_intermediate_predict_response(
    ret: Sequence[Any], req_id_map: Mapping[int, str], message: str, code: int, context: Any = None
) -> None:
    """Send the next chunk of each request of the batch. Raises `BadHandlerOutput` for too few of them."""
    if isinstance(context, TorchServeContext) and context.sender is not None:
        context.sender.send(ret)


class ChunkSender:
    """The streams of one call of `handle`. The first chunk fixes status and headers of each response."""

    def __init__(
        self, running: RunningCall, processors: Sequence[RequestProcessor], refuse: Callable[[], None] = lambda: None
    ) -> None:
        """`refuse` raises if the call is to be repeated, so that nothing of it may be sent."""
        self._running = running
        self._processors = processors
        self._refuse = refuse
        self._streams: list[ItemStream] = []
        self._sent: list[list[bytes]] = []
        self._heads: list[RequestProcessor] = []

    def send(self, chunks: Sequence[Any]) -> None:
        if len(chunks) < len(self._processors):
            raise BadHandlerOutput(
                f"the batch has {len(self._processors)} requests, and the handler sent {len(chunks)} chunks", BAD_LENGTH
            )
        if not self._streams:
            self._refuse()
            self._open()
        for place, stream in enumerate(self._streams):
            self._put(place, stream, chunks[place])

    def _open(self) -> None:
        items = items_of_call(self._running, len(self._processors))
        self._streams = [ItemStream(item, self._running.stream_bytes) for item in items]
        self._sent = [[] for _ in items]
        self._heads = [_copied(own) for own in self._processors]
        for stream, own in zip(self._streams, self._heads, strict=True):
            named = content_type_of(own)
            if named or not response_head(own).is_plain:
                stream.take({"$head": with_head(named or _UNTYPED, response_head(own, untyped=not named))})

    def _put(self, place: int, stream: ItemStream, value: Any) -> None:
        self._sent[place].append(plain_bytes(value))
        stream.take(_chunk(value))

    def outputs(self, answered: Sequence[HandlerAnswer | Failure]) -> list[Any]:
        """The outputs in the end: of a request with a stream, all that was sent. The answers are the last chunks."""
        if not self._streams:
            return list(answered)
        return [self._output(place, given) for place, given in enumerate(answered)]

    def _output(self, place: int, given: HandlerAnswer | Failure) -> Any:
        stream = self._streams[place]
        if isinstance(given, Failure):
            return given
        self._put(place, stream, given.plain)
        return stream.output(answer(_text_or_bytes(b"".join(self._sent[place])), self._heads[place]))


def _copied(processor: RequestProcessor) -> RequestProcessor:
    """The response as the handler has set it so far: later changes come too late for a stream."""
    made = RequestProcessor(processor.get_request_properties())
    made.report_status(processor.get_response_status_code(), processor.get_response_status_phrase())
    made.get_response_headers().update(processor.get_response_headers())
    return made


def _chunk(value: Any) -> Any:
    """The JSON value that stands for a chunk: text for text, and for bytes that are none an object with their base64. What
    TorchServe writes as JSON and what is none (NaN) is text too.
    """
    plain = plain_bytes(value)
    if isinstance(value, (dict, list, tuple, int, float, type(None))) and not _NO_JSON.search(plain):
        return value
    text = _text_or_bytes(plain)
    return text if isinstance(text, str) else {"$bytes": b64encode(text).decode()}


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
