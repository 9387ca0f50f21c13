"""Whether the copy of a request was answered as the request was. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from penstock.job import JobState

JSON = "application/json"
# Deeper values are not compared, so that a comparison cannot exhaust the stack.
_MOST_DEPTH = 200


class Match(StrEnum):
    """How the two ends compare. `LOST`: one of them cannot be read any more, or did not come in time."""

    EQUAL = "equal"  # the same bytes, or the same error
    CLOSE = "close"  # JSON whose numbers differ by no more than the tolerance
    DIFFERENT = "different"
    STATUS = "status"  # one succeeded and the other did not, or they failed for different reasons
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job. `data` is its output; None if that is not kept any more."""

    state: JobState
    code: str = ""
    content_type: str = ""
    data: bytes | None = None


def compared(original: JobEnd, copy: JobEnd, *, tolerance: float) -> Match:
    """`tolerance` is relative to the larger of two numbers."""
    if original.state is not JobState.SUCCEEDED or copy.state is not JobState.SUCCEEDED:
        same = (original.state, original.code) == (copy.state, copy.code)
        return Match.EQUAL if same else Match.STATUS
    if original.data is None or copy.data is None:
        return Match.LOST
    if original.content_type != copy.content_type:
        return Match.DIFFERENT
    if original.data == copy.data:
        return Match.EQUAL
    is_json = original.content_type == JSON
    return Match.CLOSE if is_json and _is_close(original.data, copy.data, tolerance) else Match.DIFFERENT


def _is_close(original: bytes, copy: bytes, tolerance: float) -> bool:
    try:
        return close(msgspec.json.decode(original), msgspec.json.decode(copy), tolerance)
    except (msgspec.DecodeError, RecursionError):
        return False


def close(one: Any, other: Any, tolerance: float, depth: int = 0) -> bool:
    """Whether two JSON values are the same but for numbers that differ by at most `tolerance`, relative to the larger one."""
    if depth > _MOST_DEPTH:
        return False
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name], tolerance, depth + 1) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(close(*pair, tolerance, depth + 1) for pair in pairs)
    return bool(one == other)
