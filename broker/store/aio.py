"""The job store for a gateway's event loop: the asyncio transport of the operations in `ops.py`.

Submits are gathered into group commits, and the ends of jobs are pushed back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import redis.asyncio

from penstock.broker.contract import CancelStatus
from penstock.broker.records import KeptInput, NewJob, Push, QueueStats, Submitted
from penstock.broker.server.health import SECTIONS, StoreHealth, store_health
from penstock.broker.store import ops, registry
from penstock.broker.store.connection import CallLink, connect_async, not_loaded, store_error
from penstock.broker.store.encoding import ms
from penstock.broker.store.group_commit import GroupCommit
from penstock.broker.store.library import library
from penstock.broker.store.notifications import PushRouter, Waiter
from penstock.broker.store.ops import Command, Operation
from penstock.broker.store.registry import StoredModel, StoredRollout
from penstock.errors import StoreUnavailable
from penstock.job import Job, JobId, Payload, new_serial
from penstock.model_spec import ModelInfo, ProfileWish, SlotPlace, WorkerInfo
from penstock.rollout import Rollout

Reply = TypeVar("Reply")
# A gateway's client hears within two seconds that the store hangs. A worker only waits, and may be more patient.
ANSWER_WITHIN_S = 1.5
# This many submits of a burst leave while the rest of it is still being read, so that the store and the workers start at once.
EARLY_JOBS = 16
_SESSION = "ps:session:"


class AsyncStore:
    """What a gateway asks of the store. Every call raises `StoreUnavailable` when Redis is away or refuses to write.

    `errors` counts the calls that did.
    """

    def __init__(self, url: str) -> None:
        self.errors = 0
        self.channel = f"ps:gateway:{new_serial()}"
        self._redis = connect_async(url, name="penstock-gateway", read_timeout_s=ANSWER_WITHIN_S)
        self._suffix, self._source = library()
        self._link = CallLink(self._redis.connection_pool, within_s=ANSWER_WITHIN_S)
        self._router = PushRouter(url, self.channel, self._recheck)
        self._commits: dict[str, GroupCommit[tuple[NewJob, int], Submitted]] = {}

    async def start(self) -> None:
        self._link.open()
        await self._router.start()

    async def close(self) -> None:
        await self._router.close()
        await self._link.close()
        await self._redis.aclose()

    async def run(self, operation: Operation[Reply]) -> Reply:
        """Call one function."""
        words = operation.words(self._suffix)
        return operation.decode(await self._loaded(lambda: self._redis.execute_command(*words)))

    async def send(self, command: Command[Reply]) -> Reply:
        return command.decode(await self._plain(self._redis.execute_command(*command.words)))

    async def _loaded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The reply of `call`; loads the library first where Redis does not have it."""
        try:
            return await self._plain(call())
        except redis.ResponseError as error:
            if "Function not found" not in str(error):
                raise
        await self._load()
        return await self._plain(call())

    async def _load(self) -> None:
        try:
            await self._redis.function_load(self._source)
        except redis.exceptions.NoPermissionError as error:
            raise not_loaded(error) from error
        except (redis.RedisError, OSError) as error:
            if "already exists" not in str(error):  # another process was quicker
                raise store_error(error) from error

    async def submit(self, job: NewJob, *, max_depth: int = 10_000) -> Submitted:
        """Store one job; submits of the same moment share one Redis call, and so one fsync."""
        model = job.id.model
        commit = self._commits.get(model)
        if commit is None:
            commit = self._commits[model] = GroupCommit(self._submit_group, size_of=_input_bytes, early=EARLY_JOBS)
        return await commit.commit((job, max_depth))

    def _submit_group(self, items: Sequence[tuple[NewJob, int]]) -> Awaitable[list[Submitted]]:
        operation = ops.submit([job for job, _ in items], items[-1][1])
        words = operation.words(self._suffix)
        return self._submitted(operation, words, self._link.call(words))

    async def _submitted(
        self, operation: Operation[list[Submitted]], words: Sequence[Any], sent: asyncio.Future[Any] | None
    ) -> list[Submitted]:
        calls = iter([sent] if sent is not None else [])
        # If the library had to be loaded first, the pool repeats the call; a serial that was stored is found again.
        return operation.decode(await self._loaded(lambda: next(calls, None) or self._redis.execute_command(*words)))

    def waiter(self, job: JobId) -> AbstractContextManager[Waiter]:
        """A local subscription to the job's changes; enter it before `submit` or `watch`, or a change may be missed."""
        return self._router.waiter(job)

    def wake_waiters(self) -> None:
        """Have all waiters decide again whether to go on waiting."""
        self._router.wake_all()

    async def watch(self, job: JobId, *, every_change: bool = False) -> Job | None:
        """Have the job's changes pushed to this process from now on; returns the record as it is now."""
        return await self.run(ops.watch(job, channel=self.channel, every_change=every_change))

    async def _recheck(self, job: JobId) -> Push | None:
        """The end of a job whose push may have been lost, or None while the job is live."""
        found = await self.result(job)
        if found is None or not found[0].state.final:
            return None
        record, output = found
        error = record.error
        return Push(job, record.state, output, error.code if error else "", error.message if error else "", record.batch)

    async def read(self, job: JobId) -> Job | None:
        return await self.run(ops.read(job))

    async def result(self, job: JobId) -> tuple[Job, Payload | None] | None:
        return await self.run(ops.result(job))

    async def input(self, job: JobId) -> KeptInput | None:
        return await self.run(ops.kept_input(job))

    async def collected_owner(self, job: JobId) -> str | None:
        return await self.send(ops.collected_owner(job))

    async def cancel(self, job: JobId, *, owner: str = "") -> CancelStatus:
        return await self.run(ops.cancel(job, owner=owner))

    async def jobs(self, model: str, *, before: str = "", limit: int = 100) -> list[Job]:
        return await self.run(ops.jobs(model, before=before, limit=limit))

    async def inbox(self, model: str, *, before: str = "", limit: int = 100) -> list[Job]:
        return await self.run(ops.inbox(model, before=before, limit=limit))

    async def stats(self, model: str) -> QueueStats:
        return await self.run(ops.stats(model))

    async def stats_of(self, models: Sequence[str]) -> list[QueueStats]:
        """`stats` of each model, in one round trip."""
        operations = [ops.stats(model) for model in models]

        def ask() -> Awaitable[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for operation in operations:
                pipe.execute_command(*operation.words(self._suffix))
            return pipe.execute()

        replies = await self._loaded(ask) if models else []
        return [operation.decode(reply) for operation, reply in zip(operations, replies, strict=True)]

    async def models(self) -> dict[str, StoredModel]:
        """What workers and gateways announced, by model."""
        return await self.send(registry.models())

    async def swap_model(self, found: StoredModel, wanted: ModelInfo) -> bool:
        """Replace `found` by `wanted`; False if another process changed it first."""
        return await self.run(registry.swap_model(wanted.name, found, wanted))

    async def now(self) -> float:
        """The store's clock, as Unix seconds."""
        return await self.send(registry.clock())

    async def workers(self) -> list[WorkerInfo]:
        clock, entries = registry.clock(), registry.worker_entries()
        now, found = await self._piped([clock, entries])
        return registry.fresh_workers(entries.decode(found), clock.decode(now))

    async def places(self, incarnations: Iterable[str]) -> dict[str, SlotPlace]:
        """Where the slots of these incarnations run or ran, by incarnation; without those that announced no place."""
        names = sorted(set(incarnations))
        commands = [registry.place_of(name) for name in names]
        replies = await self._piped(commands) if names else []
        places = [command.decode(reply) for command, reply in zip(commands, replies, strict=True)]
        return {name: place for name, place in zip(names, places, strict=True) if place is not None}

    async def rollouts(self) -> dict[str, StoredRollout]:
        """The operators' changes, by model."""
        return await self.send(registry.rollouts())

    async def swap_rollout(self, model: str, found: StoredRollout, wanted: Rollout) -> bool:
        """Replace `found` by `wanted`; False if another process changed it first."""
        return await self.run(registry.swap_rollout(model, found, wanted))

    async def profile_wish(self, model: str) -> ProfileWish | None:
        return await self.send(registry.profile_wish(model))

    async def wish_profile(self, model: str, wish: ProfileWish) -> None:
        """Replace the model's last profile request; its workers see the new one at their next beat."""
        await self.send(registry.wish_profile(model, wish))

    async def keep_session(self, name: str, text: str, ttl_s: float) -> None:
        """Keep a browser's session for every gateway of this store."""
        await self._plain(self._redis.set(f"{_SESSION}{name}", text, px=ms(ttl_s)))

    async def session(self, name: str) -> str | None:
        kept = await self._plain(self._redis.get(f"{_SESSION}{name}"))
        return None if kept is None else kept.decode()

    async def end_session(self, name: str) -> None:
        await self._plain(self._redis.delete(f"{_SESSION}{name}"))

    async def ping(self) -> None:
        """Returns if Redis is reachable and takes writes."""
        await self._plain(self._redis.set("ps:ping", "1", px=60_000))

    async def health(self) -> StoreHealth | None:
        """The state of the Redis server; None for a user without the right to ask, where an administrator gave fewer rights."""
        try:
            return store_health(await self._redis.info(*SECTIONS))
        except redis.exceptions.NoPermissionError:
            return None
        except (redis.RedisError, OSError) as error:
            self.errors += 1
            raise store_error(error) from error

    async def _piped(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """The raw replies, read in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command.words)
        replies: list[Any] = await self._plain(pipe.execute())
        return replies

    async def _plain(self, reply: Awaitable[Any] | Any) -> Any:
        try:
            return await reply
        except (redis.RedisError, OSError) as error:
            translated = store_error(error)
            self.errors += isinstance(translated, StoreUnavailable)
            raise translated from error


def _input_bytes(item: tuple[NewJob, int]) -> int:
    return len(item[0].input.data)
