"""The part of some content that a GET asks for: conditions, and one range of bytes (RFC 9110, 13 and 14). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import CallerError

_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*")


class RangeNotSatisfiable(CallerError):
    """`size`: of the whole content."""

    kind = "range_not_satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"the range begins behind the end: the content has {size} bytes")
        self.size = size


class Conditions(NamedTuple):
    """The headers of a GET that select a part of the content, or make it conditional."""

    range: str | None = None
    if_range: str | None = None
    if_none_match: str | None = None


class ContentPart(NamedTuple):
    """The bytes from `start` up to `end`, and the status of the answer that has them: 200 all, 206 a part, 304 none."""

    status: int
    start: int
    end: int


def wanted_part(size: int, tag: str, asked: Conditions) -> ContentPart:
    """What to answer to these headers, for content of `size` bytes that `tag` identifies. Raises `RangeNotSatisfiable`.

    Several ranges at once are answered with the whole content, as the standard allows: serving them is not worth the code.
    """
    if asked.if_none_match is not None and is_match(asked.if_none_match, tag):
        return ContentPart(304, 0, 0)
    match = _RANGE.fullmatch(asked.range) if asked.range is not None and asked.if_range in (None, tag) else None
    first, last = match.groups() if match else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return ContentPart(200, 0, size)
    start = int(first) if first else max(0, size - int(last))
    if start >= size:
        raise RangeNotSatisfiable(size)
    return ContentPart(206, start, min(int(last) + 1, size) if first and last else size)


def is_match(header: str, tag: str) -> bool:
    """If-None-Match, compared weakly."""
    return header.strip() == "*" or tag.removeprefix("W/") in [item.strip().removeprefix("W/") for item in header.split(",")]
