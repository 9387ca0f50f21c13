"""Finds the partition and version of a repeat's first job, a partition's share of the limits, and another place for a job that
its queue refused because the registry has changed.
"""

# D142: docs/design/store.md

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.broker.partitions import numbers_of_key, share
from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store import ops
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import first_job
from penstock.gateway.models.registry import ModelEntry, ModelRegistry, VersionEntry
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


async def placed_anew(
    store: AsyncStore, registry: ModelRegistry, job: NewJob, refusal: SubmitStatus
) -> tuple[ModelEntry, NewJob]:
    """The model as it is now, and the job with its place there, after its queue refused it as `RETIRED` or `MOVED`.

    Raises `NotFound` if the version is no longer served, and `StoreUnavailable`.
    """
    # Before the registry is read: only these closings does it answer for.
    closed = await store.send(ops.retired(job.id.queue))
    await registry.refresh()
    stored = registry.stored(job.id.model)
    if stored.info is None:
        await registry.announce()
    elif refusal is SubmitStatus.MOVED and stored.info.placing == job.placing:
        # A worker was lost while it changed the number of partitions: the number stays.
        await store.swap_model(stored, replace(stored.info, placing=stored.info.placing + 1))
    await registry.refresh()
    entry, _ = await registry.find(job.id.model, job.version)
    is_open = job.id.partition < entry.info.partitions
    for version in closed.keys() & ({job.version, ""} if is_open else {job.version}):
        await store.run(ops.reopen(job.id.queue, version, closed[version]))
    if job.replay_of is not None or (is_open and not job.idempotency_key):
        return entry, job
    wanted = entry.backlog.new_job_id(entry.info, owner=job.owner, key=job.idempotency_key)
    return entry, replace(job, id=job.id._replace(partition=wanted.partition), placing=entry.info.placing)


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
