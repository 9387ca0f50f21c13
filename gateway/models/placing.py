"""Finds the partition and version of a repeat's first job, a partition's share of the limits, and another place for a job that
its queue refused because the registry has changed.
"""

# D142: docs/design/store.md

from __future__ import annotations

import asyncio
from collections.abc import Iterable
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
    """The model as it is now, and the job at the place that it has by it, after its queue refused it as `RETIRED` or `MOVED`.

    Raises `NotFound` if the version is no longer served, and `StoreUnavailable`.
    """
    entry = await reopen(store, registry, job.id.model, job.version, [job.id.partition])
    if job.replay_of is not None:
        return entry, job
    if refusal is SubmitStatus.MOVED and entry.info.placing == job.placing:
        # A worker was lost while it changed the number of partitions, before the registry said so.
        await registry.renumber(entry.name)
        entry, _ = await registry.find(entry.name, job.version)
    id = job.id
    if job.idempotency_key or id.partition >= entry.info.partitions:
        wanted = entry.backlog.new_job_id(entry.info, owner=job.owner, key=job.idempotency_key)
        id = id._replace(partition=wanted.partition)
    return entry, replace(job, id=id, placing=entry.info.placing)


async def reopen(store: AsyncStore, registry: ModelRegistry, model: str, version: str, numbers: Iterable[int]) -> ModelEntry:
    """Open the partitions of these numbers for the version, unless the registry says otherwise. Raises as `placed_anew`."""
    queues = {number: queue_of(model, number) for number in numbers}
    # Before the registry is read: only these closings does it answer for.
    closings = await asyncio.gather(*(store.send(ops.retired(queue)) for queue in queues.values()))
    await registry.refresh()
    if registry.stored(model).info is None:
        await registry.announce()
        await registry.refresh()
    entry, _ = await registry.find(model, version)
    for (number, queue), closed in zip(queues.items(), closings, strict=True):
        names = [version, ""] if number < entry.info.partitions else [version]
        for name in closed.keys() & names:
            await store.run(ops.reopen(queue, name, closed[name]))
    return entry


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
