"""Rows of a shard, read and written many at once. Pure but for the handler's own types.

A call per row would cost more than a cheap model does, so all rows of a micro-batch are tried together, and one by one only
if that fails: then the bad ones are found, each with what any other input or output would be told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure
from penstock.handlers.media import JSON, Codec, plain, plain_all

Refused = Callable[[Exception], Failure]


def read_rows(codec: Codec, media: str, rows: list[Any], refused: Refused) -> list[Any]:
    """The handler's input per row, or a `Failure`."""
    if media != JSON:
        return [_tried(lambda row: _decoded(codec, media, row), row, refused) for row in rows]
    try:
        return codec.from_values(rows)
    except Exception:  # noqa: BLE001 - what it is shows below, row by row
        return [_tried(codec.from_value, row, refused) for row in rows]


def write_rows(values: list[Any], refused: Refused) -> list[Any]:
    """A plain value or bytes per output, or a `Failure`."""
    try:
        return plain_all(values)
    except Exception:  # noqa: BLE001 - as above
        return [_tried(plain, value, refused) for value in values]


def _tried(step: Callable[[Any], Any], value: Any, refused: Refused) -> Any:
    try:
        return step(value)
    except Exception as error:  # noqa: BLE001 - types of the user's run their own code
        return refused(error)


def _decoded(codec: Codec, media: str, row: Any) -> Any:
    if not isinstance(row, bytes):
        raise InvalidInput(f"a row of {media} must be bytes, not {type(row).__name__}")
    return codec.decode(media, row)
