"""Partitions of a model: the partition of a new job, the places of its repeats, and the totals of all partitions. Pure.

Each partition is a queue of its own, with keys of its own: limits and quotas hold in each, as a share of the model's.
"""

# D116: docs/design/store.md

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from penstock.broker.records import QueueStats, Unfinished
from penstock.job import BANDS, queue_of
from penstock.model_spec import ModelInfo

# With single jobs, the known depth of an idle partition is 0 or 1 by chance.
_ALIKE = 1


def queues_of_model(info: ModelInfo) -> list[str]:
    """The queues that may hold the model's jobs, including those that get no new jobs."""
    return [queue_of(info.name, number) for number in numbers_of(info)]


def numbers_of(info: ModelInfo) -> range:
    return range(max(info.partitions, info.held))


def share(limit: int, partitions: int) -> int:
    """The part of a model's limit that holds in each of its partitions; 0, which is none, stays 0."""
    return -(-limit // partitions)


def partition_of_key(owner: str, key: str, partitions: int) -> int:
    """The partition of a job with an idempotency key: the same for every repeat.

    With another number of partitions only those keys have another one that must: one in four when a fourth comes.
    """
    seed = int.from_bytes(blake2b(f"{owner}\0{key}".encode(), digest_size=8).digest(), "big")
    return _jump(seed, partitions)


def numbers_of_key(info: ModelInfo, owner: str, key: str) -> list[int]:
    """The two or three queues that may hold the first job of a key, for any earlier number of partitions."""
    return sorted({partition_of_key(owner, key, count) for count in range(1, len(numbers_of(info)) + 1)})


def _jump(seed: int, buckets: int) -> int:
    """Jump consistent hash (Lamping and Veach, arXiv 1406.2294)."""
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        seed = (seed * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((bucket + 1) * (1 << 31) / ((seed >> 33) + 1))
    return bucket


def partition_for(depths: Mapping[int, int], partitions: int, *, owner: str, key: str) -> int:
    """The partition of a new job: by its idempotency key, else the less deep of two random ones."""
    if key or partitions == 1:
        return partition_of_key(owner, key, partitions)
    first, second = random.sample(range(partitions), 2)
    return first if depths.get(first, 0) <= depths.get(second, 0) + _ALIKE else second


def total(stats: Sequence[QueueStats]) -> QueueStats:
    """The figures of all partitions of a model as those of one queue; the oldest job is that of all."""
    if len(stats) == 1:
        return stats[0]
    return QueueStats(
        model=stats[0].model,
        # Rates come from the difference of two reads, so any one store's clock will do.
        now=stats[0].now,
        ready={band: sum(one.ready.get(band, 0) for one in stats) for band in BANDS},
        oldest_age_s={band: max(one.oldest_age_s.get(band, 0.0) for one in stats) for band in BANDS},
        solo=sum(one.solo for one in stats),
        delayed=sum(one.delayed for one in stats),
        due=sum(one.due for one in stats),
        leased=sum(one.leased for one in stats),
        inbox=sum(one.inbox for one in stats),
        accepted=sum(one.accepted for one in stats),
        ended=_sum(one.ended for one in stats),
        counters=_sum(one.counters for one in stats),
        open=_sum(one.open for one in stats),
        planned=_sum(one.planned for one in stats),
    )


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums = Counter[str]()
    for one in counts:
        sums.update(one)
    return dict(sums)


def all_unfinished(parts: Iterable[Unfinished]) -> Unfinished:
    counts = list(parts)
    return Unfinished(sum(one.waiting for one in counts), sum(one.running for one in counts))
