"""What a handler returned for one request, and what it set of the response, as an output of its job (D96)."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import HandlerContractError
from penstock.extensions.torchserve.child.context import CONTENT_TYPE, RequestProcessor
from penstock.extensions.torchserve.child.errors import BAD_LENGTH, BAD_TYPE, BAD_VALUE, BadHandlerOutput
from penstock.extensions.torchserve.child.json_text import write_json
from penstock.handlers.contract import Failure, failure_of
from penstock.handlers.media import BYTES, JSON
from penstock.outputs.media import BytesLike, Media, type_fault
from penstock.outputs.response_head import ResponseHead, is_reserved, with_head

_TEXT = "text/plain; charset=utf-8"
# The stored media types of responses whose handler sets nothing, by the type of their content.
_STORED = {JSON: JSON, **{media: with_head(media, ResponseHead(untyped=True)) for media in (_TEXT, BYTES)}}


class JsonText(str):
    """JSON that is written already."""

    __slots__ = ()


class HandlerAnswer(Media):
    """The response of one request: its bytes, and what the handler set of it."""

    __slots__ = ("_of_type", "_stored")

    def __init__(self, value: Any, processor: RequestProcessor) -> None:
        """Raises `BadHandlerOutput`, and `ValueError` for a status or headers that no response can have."""
        self._of_type, data = _written(value)
        named = "" if processor.is_untouched else content_type_of(processor)
        super().__init__(data, named or self._of_type)
        if processor.is_untouched:
            self._stored = _STORED[self._of_type]
        else:
            untyped = not named and self._of_type != JSON
            self._stored = with_head(self.content_type, response_head(processor, untyped=untyped))

    def written(self) -> tuple[str, BytesLike]:
        return self._stored, self.data

    @property
    def plain(self) -> Any:
        """The value of JSON, the text of a text, else the bytes."""
        if self._of_type == JSON:
            return json.loads(bytes(self.data))
        return bytes(self.data).decode() if self._of_type == _TEXT else bytes(self.data)


def answers(returned: Any, processors: Sequence[RequestProcessor]) -> list[HandlerAnswer | Failure]:
    """One answer per request; a failure in place of one that cannot be sent.

    Raises `BadHandlerOutput` unless `handle` returned a list with an entry per request.
    """
    if not isinstance(returned, list):
        raise BadHandlerOutput(
            f"handle returned {type(returned).__name__}; return a list with one entry per request of the batch", BAD_TYPE
        )
    if len(returned) != len(processors):
        raise BadHandlerOutput(
            f"handle got {len(processors)} requests and returned a list of {len(returned)}; return one entry per request",
            BAD_LENGTH,
        )
    return [answer(value, own) for value, own in zip(returned, processors, strict=True)]


def answer(value: Any, processor: RequestProcessor) -> HandlerAnswer | Failure:
    # Made at once, because a handler may change what it returned in its next call.
    try:
        return HandlerAnswer(value, processor)
    except BadHandlerOutput as error:
        return failure_of(error)
    except ValueError as error:
        return failure_of(HandlerContractError(f"the handler's response: {error}"))


def response_head(processor: RequestProcessor, *, untyped: bool = False) -> ResponseHead:
    """What the handler set of this response. Raises `ValueError` for values that no response can have."""
    headers = {str(name): str(value) for name, value in processor.get_response_headers().items()}
    kept = {name: value for name, value in headers.items() if not is_reserved(name)}
    dropped = [name for name in headers if is_reserved(name) and name.lower() != CONTENT_TYPE]
    if dropped:
        _say_once(f"the handler set the headers {', '.join(dropped)}, which the gateway alone sets: they are left out")
    phrase = processor.get_response_status_phrase() or ""
    return ResponseHead(int(processor.get_response_status_code()), str(phrase), kept, untyped)


def content_type_of(processor: RequestProcessor) -> str:
    """The media type that the handler named; empty if it named none."""
    named = next((str(value) for name, value in _headers(processor).items() if name.lower() == CONTENT_TYPE), "")
    if named and type_fault(named):
        _say_once(f"the handler set the content type {named[:80]!r}, which is none: the response goes without one")
        return ""
    return named


def _headers(processor: RequestProcessor) -> Mapping[str, Any]:
    return processor.get_response_headers()


_said: set[str] = set()


def _say_once(text: str) -> None:
    # A handler mostly does the same for every request.
    if len(_said) < 100 and text not in _said:
        _said.add(text)
        sys.stderr.write(f"{text}\n")


def _written(value: Any) -> tuple[str, BytesLike]:
    """The media type, if the handler names none, and the bytes that TorchServe would send."""
    if isinstance(value, (bytes, bytearray)):
        return BYTES, value
    if isinstance(value, JsonText):
        return JSON, value.encode()
    if isinstance(value, str):
        return _TEXT, value.encode("utf-8", "replace")
    if _is_tensor(value):
        return BYTES, _saved(value)
    try:
        return JSON, _json(value, allow_nan=False)
    except BadHandlerOutput:
        # NaN is not JSON, and readers of JSON would fail on it. TorchServe sends it, so it is sent as text.
        return _TEXT, _json(value, allow_nan=True)


def plain_bytes(value: Any) -> bytes:
    """The bytes that stand for the value in a response. Raises `BadHandlerOutput`."""
    return bytes(_written(value)[1])


def _json(value: Any, *, allow_nan: bool) -> bytes:
    try:
        return write_json(value, allow_nan=allow_nan)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadHandlerOutput(
            f"an entry of the list that handle returned cannot be written as JSON: {error}; return text, bytes, a tensor or "
            "plain values, as .tolist() and .item() make them",
            BAD_VALUE,
        ) from error


def _is_tensor(value: Any) -> bool:
    # Asked without importing torch, which few answers need.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _saved(tensor: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()
