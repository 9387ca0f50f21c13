"""Models that answer with what they were given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import penstock
from penstock import Context, File, Handler, Image, Request


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


@penstock.model(sample=4)
def asked(item: Request[int]) -> dict[str, Any]:
    if item.input < 0:
        raise ValueError("below zero")
    said = [item.attempt, item.priority, item.owner, dict(item.headers), dict(item.query)]
    return {"input": item.input, "job": item.job, "said": said, "has_time": 0.0 < item.remaining_s < 3_700.0}


@penstock.model
def fetched(item: Order) -> list[Any]:
    return described(item.image)


@penstock.model
def doubled(item: int) -> int:
    return 2 * item


@penstock.model
def measured(item: bytes) -> int:
    return len(item)


class Looked(Handler):
    """Takes plain numbers, and looks at their requests."""

    sample = 4

    def initialize(self, context: Context) -> None:
        self.context = context

    def inference(self, batch: list[int]) -> list[dict[str, Any]]:
        return [
            {"input": one.input, "job": one.job, "said": [one.attempt, one.priority, one.owner, dict(one.headers)]}
            for one in self.context.requests
        ]
