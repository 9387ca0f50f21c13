"""What the store counts of a split: how the jobs of each version ended, and how the copies for a shadow compare.

The ends are counted in the call that ends the job (`split.lua`), so the count needs no living gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import Command, Operation, prefix
from penstock.broker.store.positions import Arg
from penstock.model_spec import ModelInfo

# The name of the word that a job's submit has for these functions: the name of the figures in which its end is counted.
WORD = "splits"


def split_counts(queue: str, name: str) -> Command[Mapping[str, int]]:
    """The counts under this name, by field. They are gone a week after the last count."""
    return Command(("HGETALL", f"{prefix(queue)}split:{name}"), _counts)


def count_split(queue: str, name: str, counts: Mapping[str, int]) -> Operation[None]:
    """Add to counts that no end of a job adds to."""
    args: list[Arg] = [name]
    for field, count in counts.items():
        args += (field, count)
    return Operation("count_split", prefix(queue), args, _nothing)


async def counts_of(store: AsyncStore, info: ModelInfo, name: str) -> Mapping[str, int]:
    """What all partitions counted of a split under this name."""
    sums = Counter[str]()
    for counts in await asyncio.gather(*(store.send(split_counts(queue, name)) for queue in queues_of_model(info))):
        sums.update(counts)
    return sums


def _counts(reply: Mapping[bytes, bytes]) -> Mapping[str, int]:
    return {field.decode(): int(count) for field, count in reply.items()}


def _nothing(_: Any) -> None:
    """The reply is not needed."""
