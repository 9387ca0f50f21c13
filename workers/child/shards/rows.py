"""Rows of a shard through a handler, read and written many at once. Pure except for the handler's own code.

A call per row would cost more than a cheap model does, so all rows of a micro-batch are tried together. Only if that fails are
they tried one by one, which finds the bad rows, each with the failure that a job's input or output would get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure
from penstock.handlers.loaded import Loaded
from penstock.handlers.media import JSON, Codec, plain, plain_all
from penstock.inputs.request import RequestInput
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import Clock, Flow, advance, fetcher, preprocessed, refusal, unwritable
from penstock.workers.ipc.frames import JobFacts

Refusal = Callable[[Exception], Failure]


class RowsOutcome(NamedTuple):
    """Per row a plain value, bytes or a `Failure`. `largest_ok`: if memory ran out, the largest batch that passed."""

    outputs: list[Any]
    postprocess_s: float
    largest_ok: int | None


def prepare_rows(
    loaded: Loaded,
    media: str,
    rows: Sequence[Any],
    calls: Calls,
    *,
    facts: JobFacts | None = None,
    said: RequestInput | None = None,
    clock: Clock = perf_counter,
) -> Flow:
    """The same for rows of a shard (`penstock.shard`), all of one job. `said`: the headers and parameters of their run."""
    began = clock()
    flow = Flow(len(rows), _read_rows(loaded, media, rows), range(len(rows)), facts=[facts] * len(rows))
    if said is not None and (said.headers or said.query):
        flow.said = dict.fromkeys(flow.live, said)
    if loaded.asks:
        flow.values = flow.requests(flow.live, None)
    return preprocessed(loaded, flow, calls, began=began, clock=clock)


def complete_rows(loaded: Loaded, flow: Flow, *, clock: Clock = perf_counter) -> RowsOutcome:
    """Postprocess, make plain values or bytes of the outputs, and put every row back in its place."""
    began = clock()
    advance(flow, loaded.postprocess, "postprocess", most=loaded.context.max_batch_size)
    outputs = write_rows(flow.values, unwritable, loaded.output_media)
    if flow.failed:
        by_place = {**flow.failed, **dict(zip(flow.live, outputs, strict=True))}
        outputs = [by_place[place] for place in range(flow.size)]
    return RowsOutcome(outputs, clock() - began, flow.largest_ok)


def _read_rows(loaded: Loaded, media: str, rows: Sequence[Any]) -> list[Any]:
    if not loaded.input_urls or media != JSON:
        return read_rows(loaded.codec, media, list(rows), refusal)
    return fetcher(loaded).read_rows(lambda row: read_rows(loaded.codec, media, [row], refusal)[0], rows)


def read_rows(codec: Codec, media: str, rows: list[Any], refuse: Refusal) -> list[Any]:
    """The handler's input per row, or a `Failure`."""
    if media != JSON:
        return [_try(lambda row: _decoded(codec, media, row), row, refuse) for row in rows]
    try:
        return codec.from_values(rows)
    except Exception:  # noqa: BLE001 - the cause is found below, row by row
        return [_try(codec.from_value, row, refuse) for row in rows]


def write_rows(values: list[Any], refuse: Refusal, media: str = "") -> list[Any]:
    """A plain value or bytes per output, or a `Failure`."""
    try:
        return plain_all(values, media)
    except Exception:  # noqa: BLE001 - as above
        return [_try(lambda value: plain(value, media), value, refuse) for value in values]


def _try(step: Callable[[Any], Any], value: Any, refuse: Refusal) -> Any:
    try:
        return step(value)
    except Exception as error:  # noqa: BLE001 - the user's types run their own code
        return refuse(error)


def _decoded(codec: Codec, media: str, row: Any) -> Any:
    if not isinstance(row, bytes):
        raise InvalidInput(f"a row of {media} must be bytes, not {type(row).__name__}")
    return codec.decode(media, row)
