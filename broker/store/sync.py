"""The job store on Redis or Valkey for one thread: the transport of the operations in `ops.py` that blocks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import redis

from penstock.broker.partitions import queues_of_model
from penstock.broker.protocol import membership
from penstock.broker.records import (
    Absent,
    BatchStamp,
    Claim,
    ClaimRequest,
    Ending,
    NewJob,
    Settled,
    Submitted,
)
from penstock.broker.store import ops, registry
from penstock.broker.store.connection import READ_TIMEOUT_S, connect
from penstock.broker.store.library import library
from penstock.broker.store.links.refusals import AWAY, not_loaded, store_error
from penstock.broker.store.links.thread_link import thread_link
from penstock.broker.store.ops import Command, Operation, blocking, prefix
from penstock.broker.store.registry import KeptTimes
from penstock.errors import StoreUnavailable
from penstock.job import Job, JobId, Payload
from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.rollout import Rollout

Reply = TypeVar("Reply")
# What one call of a function takes; submit.lua and forget.lua refuse more jobs than this.
SUBMIT_MAX = 1_000
# For this long after a queue moved to another node, no slot counts as gone: its slots subscribe there only then.
_SETTLE_S = 5.0
FORGET_MAX = 1_000
# A disk may take so long, and a replica reports once a second. Less than the connection waits for an answer.
_SYNCED_MS = 3_000
# The ends of jobs that cannot be replayed.
_DONE = (b"succeeded", b"cancelled")


class RedisStore:
    """See `JobStore`. Not thread-safe; opens its connection on first use. No call is repeated silently."""

    def __init__(self, url: str, *, name: str = "", source: str | None = None) -> None:
        self._suffix, self._source = library(source)
        self._redis = connect(url, name=name)
        self._link = thread_link(url, self._redis, name, self._source, within_s=READ_TIMEOUT_S)

    def close(self) -> None:
        self._link.close()
        self._redis.close()

    def run(self, operation: Operation[Reply]) -> Reply:
        """Call one function."""
        [reply] = self._replies([operation])
        return operation.decode(reply)

    def run_all(self, operations: Sequence[Operation[Reply]]) -> list[Reply]:
        """Call several functions in one round trip."""
        replies = self._replies(operations)
        return [operation.decode(reply) for operation, reply in zip(operations, replies, strict=True)]

    def send(self, command: Command[Reply]) -> Reply:
        [reply] = self._asked([command.words])
        return command.decode(reply)

    def _replies(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Loads the library first where Redis lacks it. Raises `NotAdmitted` if this process may not serve the store."""
        try:
            return self._call_loaded(operations)
        except (redis.ResponseError, *AWAY) as error:
            raise store_error(error) from error

    def _call_loaded(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        try:
            return self._call(operations)
        except redis.ResponseError as error:
            if "Function not found" not in str(error):
                raise
        self.load_functions()
        return self._call(operations)

    def _call(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        if time.monotonic() >= membership.renew_at:
            renewal = membership.renewal()
            renewal.decode(*self._link.answers([renewal.words(self._suffix)]))
            membership.on_renewed()
        return self._link.answers([operation.words(self._suffix) for operation in operations]) if operations else []

    def load_functions(self) -> None:
        """Load the library; does nothing if Redis has it. Raises `StoreUnavailable` for a user who may not load it."""
        try:
            self._link.load(self._source)
        except redis.exceptions.NoPermissionError as error:
            raise not_loaded(error) from error
        except redis.ResponseError as error:
            if "already exists" not in str(error):  # another process was quicker
                raise store_error(error) from error

    # One operation each; broker/store/ops.py describes its arguments and its answer.
    claim = blocking(ops.claim)
    withdraw = blocking(ops.withdraw)
    extend = blocking(ops.extend)
    finish = blocking(ops.finish)
    report = blocking(ops.report)
    retry = blocking(ops.retry)
    release = blocking(ops.release)
    sweep = blocking(ops.sweep)
    cancel = blocking(ops.cancel)
    reconcile = blocking(ops.reconcile)
    reconcile_next = blocking(ops.reconcile_next)
    read = blocking(ops.read)
    result = blocking(ops.result)
    follow = blocking(ops.follow)
    input = blocking(ops.kept_input)
    traceback = blocking(ops.traceback)
    collected_owner = blocking(ops.collected_owner)
    newest = blocking(ops.newest)
    stats = blocking(ops.stats)
    demand = blocking(ops.demand)
    unfinished = blocking(ops.unfinished)
    retire = blocking(ops.retire)
    retired = blocking(ops.retired)
    reopen = blocking(ops.reopen)
    advance = blocking(ops.advance)
    stored_models = blocking(registry.models)
    swap_model = blocking(registry.swap_model)
    announce_model = blocking(registry.announce_model)
    announce_worker = blocking(registry.announce_worker)
    withdraw_worker = blocking(registry.withdraw_worker)
    announce_location = blocking(registry.announce_location)
    stored_rollouts = blocking(registry.rollouts)
    swap_rollout = blocking(registry.swap_rollout)
    profile_wishes = blocking(registry.profile_wishes)
    learned_times = blocking(registry.learned_times)
    now = blocking(registry.clock)

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        parts = _in_parts([job.id.queue for job in jobs], SUBMIT_MAX)
        answers = self.run_all([ops.submit([jobs[index] for index in part], max_depth) for part in parts])
        by_index = {
            index: answer for part, own in zip(parts, answers, strict=True) for index, answer in zip(part, own, strict=True)
        }
        return [by_index[index] for index in range(len(jobs))]

    def finish_all(
        self, ended: Sequence[tuple[Sequence[Ending], str, BatchStamp]], request: ClaimRequest | None
    ) -> tuple[list[list[Settled]], Claim | None]:
        """Settle batches, each with its worker and stamp, and take the next if there is a request, in one round trip."""
        finishes = [ops.finish(endings, worker=worker, stamp=stamp) for endings, worker, stamp in ended]
        if request is None:
            return self.run_all(finishes), None
        claim = ops.claim(request)
        *settled, taken = self._replies([*finishes, claim])
        return [one.decode(reply) for one, reply in zip(finishes, settled, strict=True)], claim.decode(taken)

    def absent(self, queue: str, *, sweeper: str, pace_s: float, again_s: float) -> Absent:
        """Lease holders whose own channel has no subscriber: their process has ended or lost its link to Redis.

        For `pace_s` after a look, no other `sweeper` gets one. A holder is gone if it is still missing `again_s` after it was
        first missed.
        """
        if self._link.is_unsettled(_SETTLE_S):
            return Absent()
        return self.run(ops.absent(queue, sweeper=sweeper, pace_s=pace_s, again_s=again_s))

    def forget(self, jobs: Sequence[JobId]) -> int:
        parts = _in_parts([job.queue for job in jobs], FORGET_MAX)
        return sum(self.run_all([ops.forget([jobs[index] for index in part]) for part in parts]))

    def results(self, jobs: Sequence[JobId]) -> list[tuple[Job, Payload | None] | None]:
        """`result` of each, in one round trip."""
        return self.run_all([ops.result(job) for job in jobs])

    def dismiss(self, jobs: Sequence[JobId]) -> int:
        return self.run(ops.dismiss(jobs)) if jobs else 0

    def records(self, jobs: Sequence[JobId]) -> list[Job]:
        return self.run(ops.records(jobs)) if jobs else []

    def models(self) -> list[ModelInfo]:
        return [stored.info for stored in self.stored_models().values() if stored.info is not None]

    def workers(self) -> list[WorkerInfo]:
        clock, entries = registry.clock(), registry.worker_entries()
        now, reply = self._asked([clock.words, entries.words])
        return registry.fresh_workers(entries.decode(reply), clock.decode(now))

    def rollouts(self) -> dict[str, Rollout]:
        """The operators' changes, by model."""
        return {name: stored.rollout for name, stored in self.stored_rollouts().items()}

    def keep_learned_times(self, model: str, kind: str, times: KeptTimes) -> None:
        """At most `MOST_KINDS` are kept; the oldest go."""
        self.run(registry.keep_learned_times(model, kind, times))
        if forgotten := registry.outdated(self.learned_times(model)):
            self.send(registry.forget_learned_times(model, forgotten))

    def known(self, serials: Sequence[str]) -> set[str]:
        """Those of `serials` that have a record in any registered model; all of them while no model is registered, since
        nothing can then be said.
        """
        prefixes = [prefix(queue) for model in self.models() for queue in queues_of_model(model)]
        if not prefixes:
            return set(serials)
        pairs = [(serial, f"{model}job:{serial}") for serial in serials for model in prefixes]
        answers = self._exist([key for _, key in pairs])
        return {serial for (serial, _), is_there in zip(pairs, answers, strict=True) if is_there}

    def safe_ends(self, queue: str, serials: Sequence[str], *, replicas: int) -> set[str] | None:
        """Those of `serials` that this server says have succeeded, were cancelled or are gone, in a past that its disk has, and
        those of `replicas`. None: they do not have it yet. A server without a log speaks for its memory. Blocks for up to 3 s.
        """
        keys = prefix(queue)
        mark = ("SET", f"ps:replicated:{{{queue}}}", "1")
        asked = (words for one in serials for words in (("HGET", f"{keys}job:{one}", "state"), ("EXISTS", f"{keys}tomb:{one}")))
        try:
            # All in one write: another connection may lead to a primary with another past.
            _, synced, *found = self._link.together(keys, [mark, ("WAITAOF", 1, replicas, _SYNCED_MS), *asked])
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        if refused := next((reply for reply in found if isinstance(reply, Exception)), None):
            raise store_error(refused)
        if isinstance(synced, Exception) and replicas:
            raise StoreUnavailable(f"the store cannot wait for its replica: {synced}", hint="see `penstock doctor`")
        if not isinstance(synced, Exception) and (synced[0] < 1 or synced[1] < replicas):
            return None
        ends = zip(serials, found[::2], found[1::2], strict=True)
        return {serial for serial, state, tomb in ends if tomb or state in _DONE}

    def identity(self) -> str:
        """The random name that this store got when it was first asked; another Redis, or an emptied one, has another name."""
        return self.run(registry.identity(secrets.token_hex(16)))

    def _exist(self, keys: Sequence[str]) -> list[int]:
        # One command per key: a single EXISTS of a thousand keys would delay every other client's call.
        return self._asked([("EXISTS", key) for key in keys])

    def _asked(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to plain commands, in one round trip and in the form that redis-py gives them."""
        if time.monotonic() >= membership.renew_at:
            self._replies([])
        try:
            replies = self._link.answers(commands)
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        forms = self._redis.response_callbacks
        return [forms[words[0]](reply) if words[0] in forms else reply for words, reply in zip(commands, replies, strict=True)]


def _in_parts(queues: Sequence[str], most: int) -> list[list[int]]:
    """The indices of the items in parts: each part has items of one queue, and at most `most` of them."""
    by_queue: dict[str, list[int]] = {}
    for index, queue in enumerate(queues):
        by_queue.setdefault(queue, []).append(index)
    return [indices[i : i + most] for indices in by_queue.values() for i in range(0, len(indices), most)]
