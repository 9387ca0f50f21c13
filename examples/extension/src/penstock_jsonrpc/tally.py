"""How the jobs of an owner's calls ended: counted in the store by functions/tally.lua, in the command that ends each job."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.broker.store.ops import Operation, prefix

Tally = Counter[tuple[str, str]]


def read_tally(queue: str, owner: str) -> Operation[Tally]:
    """The counts of one queue of a model, by method and state."""
    return Operation("rpc_tally", prefix(queue), [owner], _decode)


def _decode(reply: list[Any]) -> Tally:
    texts = [one.decode() if isinstance(one, bytes) else str(one) for one in reply]
    return Counter({(method, state): int(count) for method, state, count in zip(*[iter(texts)] * 3, strict=True)})
