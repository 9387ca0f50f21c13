"""Models that answer with what they were given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock import File, Image


@dataclass
class Order:
    image: Image
    threshold: float = 0.5
    title: str = ""
    more: list[File] = field(default_factory=list)


def described(file: File) -> list[Any]:
    return [len(file), file.content_type, file.filename]


@penstock.model
def ordered(item: Order) -> dict[str, Any]:
    """Says what it was given."""
    files = [described(file) for file in item.more]
    return {"image": described(item.image), "threshold": item.threshold, "title": item.title, "more": files}


@penstock.model
def measured(item: bytes) -> int:
    return len(item)
