"""Models that take arrays, texts or bytes, for callers of the Open Inference Protocol."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import penstock


class Mirror(penstock.Handler):
    """Answers with what it was given, arrays as arrays."""

    accepts = ("application/json", "application/x-npy")

    def inference(self, batch: list[Any]) -> list[Any]:
        return batch


@penstock.model
def measured(item: bytes) -> dict[str, int]:
    return {"length": len(item)}


@dataclass
class Sentence:
    text: str
    words: list[str]
    weight: float = 1.0


@penstock.model
def counted(item: Sentence) -> dict[str, Any]:
    return {
        "letters": len(item.text),
        "upper": [word.upper() for word in item.words],
        "weight": item.weight,
        "more": {"a": None},
    }


@penstock.model(sample=0.0)
def slow(item: float) -> float:
    time.sleep(item)
    return item


@penstock.model(sample=1)
def scaled(item: penstock.Request[int]) -> dict[str, Any]:
    return {"value": item.input, "unit": item.query.get("unit", ""), "priority": item.priority}


class Told(penstock.Handler):
    """Yields the numbers below its input."""

    def inference(self, batch: list[int]) -> Any:
        for step in range(max(batch)):
            yield [step if step < count else None for count in batch]
