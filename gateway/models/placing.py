"""Finds the partition and version of a repeat's first job, and a partition's share of the limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.broker.partitions import numbers_of_key, share
from penstock.broker.records import NewJob
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import first_job
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.job import JobId, queue_of
from penstock.model_spec import ModelInfo


async def placed(store: AsyncStore, info: ModelInfo, job: NewJob) -> tuple[NewJob, int]:
    """The job with its partition's share of the owner's quota and of the model's queue limit.

    A repeat goes to its first job's partition, which may date from another number of partitions. Raises
    `StoreUnavailable`.
    """
    if job.idempotency_key and job.replay_of is None:
        first = await first_of_key(store, info, owner=job.owner, key=job.idempotency_key)
        if first is not None and first.partition != job.id.partition:
            job = replace(job, id=job.id._replace(partition=first.partition))
    most_open = share(job.max_open_jobs, info.partitions)
    return replace(job, max_open_jobs=most_open), share(info.limits.max_queue_depth, info.partitions)


async def first_of_key(store: AsyncStore, info: ModelInfo, *, owner: str, key: str) -> JobId | None:
    """The job that was made for this idempotency key before; None if there is none."""
    queues = [queue_of(info.name, number) for number in numbers_of_key(info, owner, key)]
    jobs = await asyncio.gather(*(store.send(first_job(queue, owner, key)) for queue in queues))
    return next((job for job in jobs if job is not None), None)


async def version_of_repeat(
    store: AsyncStore, entry: ModelEntry, chosen: VersionEntry, *, owner: str, key: str
) -> VersionEntry:
    """The version of the job that an earlier request with this idempotency key made; `chosen` without such a job."""
    first = await first_of_key(store, entry.info, owner=owner, key=key)
    known = None if first is None else await store.read(first)
    return chosen if known is None else entry.versions.get(known.version, chosen)
