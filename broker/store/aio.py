"""The job store for a gateway's event loop: the same functions, submits gathered into group commits, ends pushed back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import redis.asyncio

from penstock.broker.contract import CancelStatus
from penstock.broker.records import KeptInput, NewJob, Push, QueueStats, Submitted
from penstock.broker.server.health import SECTIONS, StoreHealth, store_health
from penstock.broker.store import encoding as enc
from penstock.broker.store.connection import connect_async
from penstock.broker.store.group_commit import GroupCommit
from penstock.broker.store.library import library
from penstock.broker.store.pipelined_link import CallLink
from penstock.broker.store.pushes import PushRouter, Waiter
from penstock.broker.store.registry import (
    MODELS_KEY,
    PROFILES_KEY,
    ROLLOUTS_KEY,
    WORKERS_KEY,
    StoredModel,
    StoredRollout,
    fresh_workers,
    place_key,
    slot_of,
    stored_models,
    stored_rollouts,
    swap_args,
)
from penstock.broker.store.sync import not_loaded, store_error
from penstock.errors import StoreUnavailable
from penstock.job import Job, Payload
from penstock.job_id import JobId, new_serial
from penstock.model_spec import ModelInfo, ProfileWish, SlotPlace, WorkerInfo
from penstock.rollout import Rollout

# A client is told within two seconds that the store hangs; a worker, which only waits, may be more patient.
ANSWER_WITHIN_S = 1.5
# Submits that leave while the rest of a burst is still being read: the store and the workers begin beside the gateway.
EARLY_JOBS = 16
_SESSION = "ps:session:"


class AsyncStore:
    """What a gateway asks of the store. Every call raises `StoreUnavailable` when Redis is away or refuses to write.

    `errors` counts how often one did.
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

    async def _run(self, name: str, model: str, args: Sequence[enc.Arg]) -> Any:
        return await self.call(name, enc.prefix(model), args)

    async def call(self, name: str, key: str, args: Sequence[enc.Arg]) -> Any:
        """The reply of one function on a key of its own, for what is stored beside jobs."""
        command = self._command(name, key, args)
        return await self._loaded(lambda: self._redis.execute_command(*command))

    def _command(self, name: str, key: str, args: Sequence[enc.Arg]) -> tuple[Any, ...]:
        return ("FCALL", f"penstock_{name}_{self._suffix}", 1, key, *args)

    async def _loaded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What `call` answers; with the library loaded first where Redis does not have it."""
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
            commit = self._commits[model] = GroupCommit(self._submit_all, size_of=_input_bytes, early=EARLY_JOBS)
        return await commit.commit((job, max_depth))

    def _submit_all(self, items: Sequence[tuple[NewJob, int]]) -> Awaitable[list[Submitted]]:
        jobs = [job for job, _ in items]
        model, max_depth = jobs[0].id.model, items[-1][1]
        command = self._command("submit", enc.prefix(model), enc.submit_args(jobs, max_depth))
        return self._submitted(model, command, self._link.call(command))

    async def _submitted(self, model: str, command: tuple[Any, ...], sent: asyncio.Future[Any] | None) -> list[Submitted]:
        calls = iter([sent] if sent is not None else [])
        # Repeated by the pool where the library had to be loaded first; a serial that was stored is found again.
        reply = await self._loaded(lambda: next(calls, None) or self._redis.execute_command(*command))
        return enc.submit_reply(reply, model)

    def waiter(self, job: JobId) -> AbstractContextManager[Waiter]:
        """A local subscription to the job's changes; enter it before `submit` or `watch`, or a change may pass unseen."""
        return self._router.waiter(job)

    def wake_waiters(self) -> None:
        """Have all of them look again at whether to go on waiting."""
        self._router.wake_all()

    async def watch(self, job: JobId, *, every_change: bool = False) -> Job | None:
        """Have the job's changes pushed to this process from now on; the record as it is now."""
        mark = "+" if every_change else "="
        found = enc.read_reply(await self._run("watch", job.model, [job.serial, mark + self.channel]), job)
        return found and found[0]

    async def _recheck(self, job: JobId) -> Push | None:
        """The end of a job whose push may have been lost, or None while it is live."""
        found = await self.result(job)
        if found is None or not found[0].state.final:
            return None
        record, output = found
        error = record.error
        return Push(job, record.state, output, error.code if error else "", error.message if error else "", record.batch)

    async def read(self, job: JobId) -> Job | None:
        found = enc.read_reply(await self._run("read", job.model, [job.serial, "0"]), job)
        return found and found[0]

    async def result(self, job: JobId) -> tuple[Job, Payload | None] | None:
        return enc.read_reply(await self._run("read", job.model, [job.serial, "1"]), job)

    async def input(self, job: JobId) -> KeptInput | None:
        return enc.input_reply(await self._run("input", job.model, [job.serial]))

    async def collected_owner(self, job: JobId) -> str | None:
        owner = await self._plain(self._redis.get(f"{enc.prefix(job.model)}tomb:{job.serial}"))
        return None if owner is None else owner.decode()

    async def cancel(self, job: JobId, *, owner: str = "") -> CancelStatus:
        return CancelStatus((await self._run("cancel", job.model, [job.serial, owner])).decode())

    async def jobs(self, model: str, *, before: str = "", limit: int = 100) -> list[Job]:
        return enc.list_reply(await self._run("list", model, [before, limit]), model)

    async def inbox(self, model: str, *, before: str = "", limit: int = 100) -> list[Job]:
        return enc.list_reply(await self._run("inbox", model, [before, limit]), model)

    async def stats(self, model: str) -> QueueStats:
        return enc.stats_reply(await self._run("stats", model, []), model)

    async def stats_of(self, models: Sequence[str]) -> list[QueueStats]:
        """The same of many models, in one round trip."""

        def ask() -> Awaitable[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for model in models:
                pipe.execute_command(*self._command("stats", enc.prefix(model), []))
            return pipe.execute()

        replies = await self._loaded(ask) if models else []
        return [enc.stats_reply(reply, model) for reply, model in zip(replies, models, strict=True)]

    async def models(self) -> dict[str, StoredModel]:
        """What workers and gateways announced, by model."""
        return stored_models(await self._plain(self._redis.hgetall(MODELS_KEY)))

    async def workers(self) -> list[WorkerInfo]:
        return fresh_workers(await self._plain(self._redis.hgetall(WORKERS_KEY)), time.time())

    async def places(self, incarnations: Iterable[str]) -> dict[str, SlotPlace]:
        """Where the slots with these names run or ran, by the names given; without those that nobody told of."""
        names = sorted(set(incarnations))
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.get(place_key(slot_of(name)))
        found = await self._plain(pipe.execute()) if names else []
        return {name: msgspec.json.decode(entry, type=SlotPlace) for name, entry in zip(names, found, strict=True) if entry}

    async def swap_model(self, found: StoredModel, wanted: ModelInfo) -> bool:
        """Replace `found` by `wanted`; False when somebody else was quicker."""
        return bool(await self.call("swap", MODELS_KEY, swap_args(wanted.name, found, wanted)))

    async def rollouts(self) -> dict[str, StoredRollout]:
        """What operators changed, by model."""
        return stored_rollouts(await self._plain(self._redis.hgetall(ROLLOUTS_KEY)))

    async def swap_rollout(self, model: str, found: StoredRollout, wanted: Rollout) -> bool:
        """Replace `found` by `wanted`; False when somebody else was quicker."""
        return bool(await self.call("swap", ROLLOUTS_KEY, swap_args(model, found, wanted)))

    async def profile_wish(self, model: str) -> ProfileWish | None:
        found = await self._plain(self._redis.hget(PROFILES_KEY, model))
        return msgspec.json.decode(found, type=ProfileWish) if found else None

    async def wish_profile(self, model: str, wish: ProfileWish) -> None:
        """In place of the model's wish before; its workers see it at their next beat."""
        await self._plain(self._redis.hset(PROFILES_KEY, model, msgspec.json.encode(wish).decode()))

    async def keep_session(self, name: str, text: str, ttl_s: float) -> None:
        """A browser's session, for every gateway of this store."""
        await self._plain(self._redis.set(f"{_SESSION}{name}", text, px=enc.ms(ttl_s)))

    async def session(self, name: str) -> str | None:
        kept = await self._plain(self._redis.get(f"{_SESSION}{name}"))
        return None if kept is None else kept.decode()

    async def end_session(self, name: str) -> None:
        await self._plain(self._redis.delete(f"{_SESSION}{name}"))

    async def ping(self) -> None:
        """Nothing, when Redis is reachable and takes writes."""
        await self._plain(self._redis.set("ps:ping", "1", px=60_000))

    async def health(self) -> StoreHealth | None:
        """How its server is; None for a user who may not ask, as in a Redis whose administrator gave fewer rights."""
        try:
            return store_health(await self._redis.info(*SECTIONS))
        except redis.exceptions.NoPermissionError:
            return None
        except (redis.RedisError, OSError) as error:
            self.errors += 1
            raise store_error(error) from error

    async def _plain(self, reply: Awaitable[Any] | Any) -> Any:
        try:
            return await reply
        except (redis.RedisError, OSError) as error:
            told = store_error(error)
            self.errors += isinstance(told, StoreUnavailable)
            raise told from error


def _input_bytes(item: tuple[NewJob, int]) -> int:
    return len(item[0].input.data)
