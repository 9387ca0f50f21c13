"""A shard: rows of a run that travel as one job; the outcome of each row; and what rows cost.

Shards and outcomes are msgpack, which is never read as code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import InvalidInput

SHARD_MEDIA = "application/vnd.penstock.shard"
# The code of a row that was not run, because the shard's time was over.
NOT_RUN = "not_run"


class Shard(Struct, array_like=True, gc=False):
    """Rows of one run, in order. With `media` application/json each row is a plain value, as parsed from JSON; with any other
    media type each row is the bytes of one body of that type. `headers` and `query`: what the run says of its request, for all.
    `most_s`: after this time the shard ends with the rows that ran, at least one micro-batch; the others fail with `NOT_RUN`.
    0: it ends with its last row.
    """

    media: str
    rows: list[Any]
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    most_s: float = 0.0


class RowFailure(Struct, array_like=True, gc=False):
    """Why the row at `place` (from 0, within its shard) has no output."""

    place: int
    code: str
    message: str
    retryable: bool = False


class ShardOutcome(Struct, array_like=True, gc=False):
    """`outputs`: one per row, in the shard's order, None at the places that `failures` names; plain values, or bytes."""

    outputs: list[Any]
    failures: list[RowFailure] = []


_encoder = msgspec.msgpack.Encoder()
_shard = msgspec.msgpack.Decoder(Shard)
_outcome = msgspec.msgpack.Decoder(ShardOutcome)


def encode_shard(shard: Shard) -> bytes:
    return _encoder.encode(shard)


def decode_shard(data: bytes) -> Shard:
    """Raises `InvalidInput` for anything that `encode_shard` did not write."""
    try:
        return _shard.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"these {len(data)} bytes are no shard: {error}") from error


def encode_outcome(outcome: ShardOutcome) -> bytes:
    """Raises `OverflowError` for whole numbers over 64 bits, and what msgspec raises for values that are not plain.

    Raises `MemoryError` if it does not fit; msgspec would end the process if it grew its own bytes.
    """
    data = bytearray()
    _encoder.encode_into(outcome, data)
    return bytes(data)


def decode_outcome(data: bytes) -> ShardOutcome:
    """Raises `InvalidInput` for anything that a worker did not write."""
    try:
        return _outcome.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"these {len(data)} bytes are no outcome of a shard: {error}") from error


_SIZED = frozenset({str, bytes, list})


def row_costs(rows: Sequence[Any]) -> list[int]:
    """The cost of each row: its number of characters, bytes or parts; of an object, that of its texts. Only their order
    counts.
    """
    kinds = set(map(type, rows))
    if kinds <= _SIZED:
        return list(map(len, rows))
    return list(map(_cost, rows)) if kinds & {dict, *_SIZED} else [0] * len(rows)


def _cost(row: Any) -> int:
    if isinstance(row, dict):
        return sum(len(part) for part in row.values() if isinstance(part, (str, bytes, list)))
    return len(row) if isinstance(row, (str, bytes, list)) else 0


def by_cost(costs: Sequence[int]) -> Sequence[int]:
    """The places of the rows in ascending order of cost, so that rows of one call are alike and need little padding."""
    places = range(len(costs))
    if len(set(costs)) <= 1:
        return places
    return sorted(places, key=costs.__getitem__)
