"""The job store for a gateway's event loop: the asyncio transport of the operations in `ops.py`.

Submits are gathered into group commits, and the ends of jobs are pushed back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import redis.asyncio

from penstock.broker.protocol import membership
from penstock.broker.records import NewJob, Push, QueueStats, Submitted
from penstock.broker.server.health import SECTIONS, StoreHealth, store_health, worst_health
from penstock.broker.store import ops, registry
from penstock.broker.store.connection import CallLink, cluster_nodes, connect_async, is_cluster, sentinels_of
from penstock.broker.store.group_commit import GroupCommit
from penstock.broker.store.library import library
from penstock.broker.store.links.refusals import AskAgain, is_lacking, not_loaded, store_error
from penstock.broker.store.notifications import PushRouter, Waiter
from penstock.broker.store.ops import Command, Operation, awaited, ms
from penstock.broker.store.registry import StoredModel
from penstock.errors import StoreUnavailable
from penstock.job import Job, JobId, new_serial
from penstock.model_spec import ModelInfo, SlotLocation, WorkerInfo

if TYPE_CHECKING:
    from penstock.broker.store.links.cluster_calls import ClusterCallLink

Reply = TypeVar("Reply")
# A gateway tells its client within two seconds that the store hangs. A worker has no client and waits longer.
ANSWER_WITHIN_S = 1.5
# This many submits of a burst leave while the rest of it is still being read, so that the store and the workers start at once.
EARLY_JOBS = 16
# After a failover a server may refuse calls for a moment. A call that it refused is safe to repeat.
_ASK_AGAIN_S = (0.05, 0.2, 0.5)
_SESSION = "ps:session:"


class AsyncStore:
    """What a gateway asks of the store. Every call raises `StoreUnavailable` when Redis is away or refuses to write.

    `errors` counts the calls that did.
    """

    def __init__(self, url: str, *, replicated: bool = False) -> None:
        """`replicated`: what writes is answered once a replica has it on its disk."""
        self.errors = 0
        self.url = url
        self.channel = f"ps:gateway:{new_serial()}"
        self._redis = connect_async(url, name="penstock-gateway", read_timeout_s=ANSWER_WITHIN_S)
        self._suffix, self._source = library()
        self._nodes = cluster_nodes(url, name="penstock-gateway", within_s=ANSWER_WITHIN_S) if is_cluster(url) else None
        # Submits have their own link, so that their answers never wait behind a long answer to a reader.
        self._submits, self._calls = self._link(replicated=replicated), self._link()
        # A link that waits for the replica delays later calls, so reads use another link.
        self._writes = self._link(replicated=True) if replicated else self._calls
        self._loading: asyncio.Future[None] | None = None
        self._asking, self._joining = asyncio.Lock(), asyncio.Lock()
        self._router = PushRouter(url, self.channel, ended=self._ended, recheck=self._recheck)
        self._commits: dict[str, GroupCommit[tuple[NewJob, int], Submitted]] = {}

    def _link(self, *, replicated: bool = False) -> CallLink | ClusterCallLink:
        if self._nodes is not None:
            return self._nodes.facade(replicated=replicated)
        if not replicated:
            return CallLink(self._redis.connection_pool, within_s=ANSWER_WITHIN_S)
        # Imported here, because few stores have a replica to wait for.
        from penstock.broker.store.links.replicated_link import ReplicatedLink

        return ReplicatedLink(self._redis.connection_pool, within_s=ANSWER_WITHIN_S, sentinels=sentinels_of(self.url))

    async def start(self) -> None:
        for link in (self._submits, self._calls, self._writes):
            link.open()
        await self._router.start()

    async def close(self) -> None:
        await self._router.close()
        for link in (self._submits, self._calls, self._writes):
            await link.close()
        if self._nodes is not None:
            await self._nodes.aclose()
        await self._redis.aclose()

    async def run(self, operation: Operation[Reply]) -> Reply:
        """Call one function."""
        words = operation.words(self._suffix)
        link = self._writes if self._writes.waits_for(operation.function) else self._calls
        return operation.decode(await self._loaded(lambda: link.answer(words)))

    async def send(self, command: Command[Reply]) -> Reply:
        return command.decode(await self._ask(*command.words))

    async def _ask(self, *words: Any) -> Any:
        """The reply to a plain command, in the form that redis-py gives it, as the store of a thread gets it."""
        reply = await self._once_loaded(lambda: self._calls.answer(words))
        formed = self._redis.response_callbacks.get(words[0])
        return reply if formed is None else formed(reply)

    async def _loaded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The reply of `call`; loads the library first where Redis does not have it. Asks again if no server took the call."""
        for pause_s in _ASK_AGAIN_S:
            try:
                return await self._once_loaded(call)
            except AskAgain:
                await asyncio.sleep(pause_s)
        return await self._once_loaded(call)

    async def _once_loaded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await self._admitted(call)
        except redis.ResponseError as error:
            if not is_lacking(error):
                raise
        await self._load()
        return await self._admitted(call)

    async def _admitted(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The reply of `call`. Raises `NotAdmitted` instead of calling if this process may not serve the store."""
        if time.monotonic() >= membership.renew_at:
            async with self._joining:
                if time.monotonic() >= membership.renew_at:  # no other call has renewed it meanwhile
                    renewal = membership.renewal()
                    renewal.decode(await self._plain(self._calls.answer(renewal.words(self._suffix))))
                    membership.on_renewed()
        return await self._plain(call())

    async def _load(self) -> None:
        """Load the library, once for all callers who miss it at the same time: it is large."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load_once())
            self._loading.add_done_callback(self._on_loaded)
        await asyncio.shield(self._loading)

    def _on_loaded(self, loading: asyncio.Future[None]) -> None:
        self._loading = None
        if not loading.cancelled():
            loading.exception()  # seen here, because every caller may have left

    async def _load_once(self) -> None:
        try:
            await self._calls.load(self._source)
        except redis.exceptions.NoPermissionError as error:
            raise not_loaded(error) from error
        except (redis.RedisError, OSError) as error:
            if "already exists" not in str(error):  # another process was quicker
                raise store_error(error) from error

    # One operation each; broker/store/ops.py describes its arguments and its answer.
    read = awaited(ops.read)
    result = awaited(ops.result)
    follow = awaited(ops.follow)
    input = awaited(ops.kept_input)
    collected_owner = awaited(ops.collected_owner)
    cancel = awaited(ops.cancel)
    traceback = awaited(ops.traceback)
    newest = awaited(ops.newest)
    stats = awaited(ops.stats)
    unfinished = awaited(ops.unfinished)
    models = awaited(registry.models)
    rollouts = awaited(registry.rollouts)
    swap_rollout = awaited(registry.swap_rollout)
    profile_wish = awaited(registry.profile_wish)
    wish_profile = awaited(registry.wish_profile)
    refused = awaited(registry.refused)
    now = awaited(registry.clock)
    _ended = awaited(ops.ended)

    async def submit(self, job: NewJob, *, max_depth: int = 10_000) -> Submitted:
        """Store one job; submits of the same moment share one Redis call, and so one fsync."""
        if time.monotonic() >= membership.renew_at:
            await self._loaded(lambda: asyncio.sleep(0))
        queue = job.id.queue
        commit = self._commits.get(queue)
        if commit is None:
            commit = self._commits[queue] = GroupCommit(self._submit_group, size_of=_input_bytes, early=EARLY_JOBS)
        return await commit.commit((job, max_depth))

    def _submit_group(self, items: Sequence[tuple[NewJob, int]]) -> Awaitable[list[Submitted]]:
        operation = ops.submit([job for job, _ in items], items[-1][1])
        words = operation.words(self._suffix)
        return self._submitted(operation, words, self._submits.call(words))

    async def _submitted(
        self, operation: Operation[list[Submitted]], words: Sequence[Any], sent: asyncio.Future[Any] | None
    ) -> list[Submitted]:
        calls = iter([sent] if sent is not None else [])
        # If the link was down or the library had to be loaded first, the call is made again; a stored serial is found again.
        return operation.decode(await self._loaded(lambda: next(calls, None) or self._submits.answer(words)))

    def waiter(self, *jobs: JobId) -> AbstractContextManager[Waiter]:
        """A local subscription to the changes of these jobs; enter it before `submit` or `watch`, or a change may be missed."""
        return self._router.waiter(*jobs)

    def wake_waiters(self) -> None:
        """Have all waiters decide again whether to go on waiting."""
        self._router.wake_all()

    async def watch(self, job: JobId, *, every_change: bool = False, owner: str | None = None) -> Job | None:
        """Have the job's changes pushed to this process from now on, unless it is another owner's; returns the record."""
        return await self.run(ops.watch(job, channel=self.channel, every_change=every_change, owner=owner))

    async def _recheck(self, job: JobId) -> Push | None:
        """The end of a job whose push may have been lost, or None while the job is live."""
        result = await self.result(job)
        return None if result is None else Push.of_end(*result)

    async def dismiss(self, jobs: Sequence[JobId]) -> int:
        return await self.run(ops.dismiss(jobs)) if jobs else 0

    async def records(self, jobs: Sequence[JobId]) -> list[Job]:
        return await self.run(ops.records(jobs)) if jobs else []

    async def stats_of(self, queues: Sequence[str]) -> list[QueueStats]:
        """`stats` of each queue, in one round trip."""
        return await asyncio.gather(*(self.stats(queue) for queue in queues))

    async def swap_model(self, stored: StoredModel, wanted: ModelInfo) -> bool:
        """Replace `stored` by `wanted`; False if another process changed it first."""
        return await self.run(registry.swap_model(wanted.name, stored, wanted))

    async def workers(self) -> list[WorkerInfo]:
        now, entries = await asyncio.gather(self.send(registry.clock()), self.send(registry.worker_entries()))
        return registry.fresh_workers(entries, now)

    async def locations(self, incarnations: Iterable[str]) -> dict[str, SlotLocation]:
        """Where the slots of these incarnations run or ran, by incarnation; without those that announced no location."""
        names = sorted(set(incarnations))
        locations = await asyncio.gather(*(self.send(registry.location_of(name)) for name in names))
        return {name: location for name, location in zip(names, locations, strict=True) if location is not None}

    async def note_refused(self, model: str) -> None:
        await self.send(registry.note_refused(model, await self.now()))

    async def keep_session(self, name: str, text: str, ttl_s: float) -> None:
        """Keep a browser's session for every gateway of this store."""
        await self._ask("SET", f"{_SESSION}{name}", text, "PX", ms(ttl_s))

    async def session(self, name: str) -> str | None:
        kept = await self._ask("GET", f"{_SESSION}{name}")
        return None if kept is None else kept.decode()

    async def end_session(self, name: str) -> None:
        await self._ask("DEL", f"{_SESSION}{name}")

    async def ping(self) -> None:
        """Returns if Redis is reachable, takes writes, and is able to wait for replicas where writes are to wait for them."""
        await self._ask("SET", "ps:ping", "1", "PX", 60_000)
        if self._writes is not self._calls:
            await self._ask("WAITAOF", 1, 0, 1)

    async def health(self) -> StoreHealth | None:
        """The state of the Redis server; None for a user without the right to ask, where an administrator gave fewer rights."""
        try:
            async with self._asking:  # one connection of the pool, however many ask
                if self._nodes is not None:
                    return worst_health([store_health(info) for info in await self._nodes.infos(SECTIONS)])
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
            translated = store_error(error)
            self.errors += isinstance(translated, StoreUnavailable)
            raise translated from error


def _input_bytes(item: tuple[NewJob, int]) -> int:
    return len(item[0].input.data)
