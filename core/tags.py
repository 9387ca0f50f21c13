"""Tags: the words by which callers find their jobs and runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import BadRequest

MAX_TAGS = 8
_TAG = re.compile(r"[A-Za-z0-9._:=-]{1,64}")


def checked_tag(text: str) -> str:
    """The tag; raises `BadRequest` for a text that cannot be one."""
    if not _TAG.fullmatch(text):
        raise BadRequest(f"a tag has 1 to 64 characters of A-Z a-z 0-9 . _ : = -, and {text[:80]!r} is none")
    return text


def checked_tags(texts: Iterable[str]) -> tuple[str, ...]:
    """Each tag once, in order. Raises `BadRequest` as `checked_tag` does, and for too many of them."""
    found = tuple(dict.fromkeys(map(checked_tag, texts)))
    if len(found) > MAX_TAGS:
        raise BadRequest(f"a job or run has at most {MAX_TAGS} tags, not {len(found)}")
    return found
