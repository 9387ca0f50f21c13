"""The workloads: inputs, batch settings to try, and what a right answer is. Pure."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.models.length_buckets import mixed_texts
from penstock.errors import BadRequest

NOOP = "noop"
ACCELERATOR = "accelerator"
ACCELERATOR_100K = "accelerator_100k"
EMBEDDINGS = "embeddings"
_TEXT_BYTES = 4_096
_BODY_BYTES = 102_400
_TEXTS = 128
# Vectors of different batches differ in the last bits, because padding changes the order of additions.
_CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Workload:
    """The first round tries all `batches` and keeps the quickest size. `wait_ms`: how long a batch may wait for more, where a
    server has such a setting. `open_rate`: requests per second of an additional open loop; 0: none. `raw`: an input is the
    body itself, as bytes; else JSON. `uneven`: inputs differ in what they cost, which a server may learn.
    """

    name: str
    title: str
    batches: tuple[int, ...]
    wait_ms: int
    open_rate: float = 0.0
    raw: bool = False
    uneven: bool = False

    def media_type(self) -> str:
        return "application/octet-stream" if self.raw else "application/json"


WORKLOADS = (
    Workload(NOOP, "no-op", (1, 32), 1),
    Workload(ACCELERATOR, "stand-in accelerator", (32,), 5, open_rate=100.0),
    Workload(ACCELERATOR_100K, "stand-in accelerator, 100 KiB", (32,), 5, raw=True),
    Workload(EMBEDDINGS, "MiniLM embeddings", (4, 32), 5, uneven=True),
)


def workloads_named(names: str) -> list[Workload]:
    """The workloads of a comma-separated list. Raises `BadRequest` for an unknown name."""
    known = {workload.name for workload in WORKLOADS}
    wanted = known if names in ("", "all") else {name.strip() for name in names.split(",")}
    if unknown := sorted(wanted - known):
        raise BadRequest(f"no such workload: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [workload for workload in WORKLOADS if workload.name in wanted]


def inputs_of(workload: str) -> list[Any]:
    """The inputs, the same at every call: bytes of a raw workload, else objects."""
    if workload == NOOP:
        return [{"x": 4}]
    if workload == ACCELERATOR:
        return [{"text": random.Random(0).randbytes(_TEXT_BYTES // 2).hex()}]
    if workload == ACCELERATOR_100K:
        return [random.Random(0).randbytes(_BODY_BYTES)]
    return [{"text": text} for text in mixed_texts(_TEXTS)]


def is_right(workload: str, item: Any, answer: Any, vectors: Sequence[Sequence[float]]) -> bool:
    """`vectors`: the embeddings of `inputs_of(EMBEDDINGS)`, in order; empty for other workloads."""
    if workload == NOOP:
        return bool(answer == {"y": item["x"] ** 2})
    if workload in (ACCELERATOR, ACCELERATOR_100K):
        body = item if isinstance(item, bytes) else item["text"].encode()
        return bool(answer == {"sha256": hashlib.sha256(body).hexdigest(), "length": len(body)})
    expected = vectors[inputs_of(EMBEDDINGS).index(item)]
    return is_near(answer.get("embedding", ()), expected)


def is_near(found: Sequence[float], expected: Sequence[float]) -> bool:
    return len(found) == len(expected) and all(abs(a - b) <= _CLOSE for a, b in zip(found, expected, strict=True))
