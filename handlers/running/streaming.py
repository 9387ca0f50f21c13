"""Handlers that yield: each step's chunks go to their items, and an item's output follows from them at the end (D72)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from penstock.errors import HandlerContractError
from penstock.handlers.contract import Context, Failure, failure_of
from penstock.handlers.media import JSON, encode
from penstock.handlers.running.call import RunningCall, RunningItem

# D72: docs/design/streams.md
TOO_LARGE = "stream_too_large"
# The overhead of a chunk, so that many small chunks are bounded as well.
CHUNK_BYTES = 16

Stage = Callable[[list[Any]], list[Any]]
Steps = Generator[list[Any], None, Any]


def streaming_stage(inference: Callable[[list[Any]], Steps], context: Context) -> Stage:
    """A stage that runs a generator to its end. Its outputs are what the generator returns, else the chunks of each item."""

    def run(batch: list[Any]) -> list[Any]:
        streams = [ItemStream(item, context.running.stream_bytes) for item in items_of_call(context.running, len(batch))]
        with closing(inference(batch)) as steps:
            returned = _run(steps, streams)
        if returned is not None and len(returned) != len(streams):
            raise HandlerContractError(f"inference got {len(streams)} inputs and returned {len(returned)} outputs")
        return [stream.output(None if returned is None else returned[place]) for place, stream in enumerate(streams)]

    return run


def items_of_call(running: RunningCall, count: int) -> Sequence[RunningItem]:
    """The items of the call; in a warm-up there are none, and chunks are dropped."""
    return running.items if len(running.places) == count else [RunningItem(None, 0, 0)] * count


def _run(steps: Steps, streams: Sequence[ItemStream]) -> list[Any] | None:
    """What the generator returns: a list, or None. It is closed early once none of its items is wanted."""
    while not all(stream.is_over for stream in streams):
        try:
            step = next(steps)
        except StopIteration as end:
            return None if end.value is None else list(end.value)
        if type(step) is not list or len(step) != len(streams):
            raise HandlerContractError(
                f"inference yielded {type(step).__name__}; yield a list of {len(streams)}, a chunk per input, None for no chunk"
            )
        for stream, chunk in zip(streams, step, strict=True):
            if chunk is not None:
                stream.take(chunk)
    return None


class ItemStream:
    """The chunks of one item."""

    def __init__(self, item: RunningItem, most_bytes: int) -> None:
        self._item, self._most_bytes = item, most_bytes
        self._chunks: list[Any] = []
        self._bytes = 0
        self._failure: Failure | None = None
        item.restart()

    @property
    def is_over(self) -> bool:
        return self._failure is not None or self._item.cancelled

    def take(self, chunk: Any) -> None:
        if self._failure is None:
            self._failure = chunk if isinstance(chunk, Failure) else self._sent(chunk)

    def _sent(self, chunk: Any) -> Failure | None:
        try:
            media, data = encode(chunk)
        except HandlerContractError as error:
            return failure_of(error)
        if media != JSON:
            return failure_of(HandlerContractError("a chunk is a JSON value and not bytes; yield text, such as base64"))
        self._bytes += len(data) + CHUNK_BYTES
        if self._bytes > self._most_bytes:
            return Failure(f"the stream is larger than max_stream_bytes, {self._most_bytes}", TOO_LARGE)
        self._chunks.append(chunk)
        self._item.send(data)
        return None

    def output(self, returned: Any) -> Any:
        """What the handler returned for the item; else its chunks, as one text if they are texts."""
        if self._failure is not None or returned is not None:
            return self._failure if self._failure is not None else returned
        is_text = bool(self._chunks) and all(isinstance(chunk, str) for chunk in self._chunks)
        return "".join(self._chunks) if is_text else self._chunks


def side_by_side(function: Callable[[Any], Generator[Any, None, Any]], batch: list[Any], running: RunningCall | None) -> Steps:
    """The generators of single items as one of a batch: each takes a step in turn, and an item that raises fails alone."""
    going = dict(enumerate(map(function, batch)))
    outputs: list[Any] = [None] * len(batch)
    while going:
        step: list[Any] = [None] * len(batch)
        for place, generator in list(going.items()):
            try:
                with (running or RunningCall()).only(place):
                    step[place] = next(generator)
            except StopIteration as end:
                outputs[place] = end.value
                del going[place]
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                step[place] = failure_of(error)
                del going[place]
        yield step
    return outputs
