"""Lists as OpenAI's clients turn their pages: `after` is the last id seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import BadParameter


def page_of(views: Sequence[dict[str, Any]], *, after: str | None, limit: int) -> dict[str, Any]:
    """The page behind `after`; raises `BadParameter` when that is none of these."""
    ids = [view["id"] for view in views]
    if after and after not in ids:
        raise BadParameter(f"after names {after[:80]!r}, which is not in this list", param="after")
    start = ids.index(after) + 1 if after else 0
    shown = views[start : start + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + limit < len(views),
    }
