"""Rows of a shard, read and written many at once. Pure except for the handler's own types.

A call per row would cost more than a cheap model does, so all rows of a micro-batch are tried together. Only if that fails are
they tried one by one, which finds the bad rows, each with the failure that a job's input or output would get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure
from penstock.handlers.media import JSON, Codec, plain, plain_all

Refusal = Callable[[Exception], Failure]


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
