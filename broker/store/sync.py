"""The job store on Redis or Valkey for one thread: the transport of the operations in `ops.py` that blocks."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

import redis

from penstock.broker.backlog import Demand
from penstock.broker.contract import CancelStatus, JobIndex, ReleaseReason
from penstock.broker.partitions import queues_of_model
from penstock.broker.records import (
    Absent,
    BatchStamp,
    Claim,
    ClaimRequest,
    Ending,
    Followed,
    GiveBack,
    KeptInput,
    LeaseRenewal,
    NewJob,
    QueueStats,
    Repair,
    Report,
    Reported,
    Settled,
    Submitted,
    SweepReport,
    Unfinished,
)
from penstock.broker.store import ops, registry
from penstock.broker.store.connection import READ_TIMEOUT_S, connect, thread_link
from penstock.broker.store.library import library
from penstock.broker.store.links.refusals import AWAY, not_loaded, store_error
from penstock.broker.store.ops import Command, Operation, prefix
from penstock.broker.store.registry import KeptTimes, StoredModel, StoredRollout
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.job import Job, JobId, Payload
from penstock.model_spec import ModelInfo, ProfileWish, SlotPlace, WorkerInfo
from penstock.rollout import Rollout

Reply = TypeVar("Reply")
# What one call of a function takes; submit.lua and forget.lua refuse more jobs than this.
SUBMIT_MAX = 1_000
# For so long after a queue went to another node, nobody counts as gone: its slots subscribe there only now.
_SETTLE_S = 5.0
FORGET_MAX = 1_000


class RedisStore:
    """See `JobStore`. Not thread-safe; opens its connection on first use. No call is repeated silently."""

    def __init__(self, url: str, *, name: str = "", source: str | None = None, within_s: float = READ_TIMEOUT_S) -> None:
        """`within_s`: how long an answer may take."""
        self._suffix, self._source = library(source)
        self._redis = connect(url, name=name, read_timeout_s=within_s)
        self._link = thread_link(url, self._redis, name, self._source, within_s=within_s)

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
        """Loads the library first where Redis does not have it."""
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
        return self._link.answers([operation.words(self._suffix) for operation in operations])

    def load_functions(self) -> None:
        """Load the library; does nothing if Redis has it. Raises `StoreUnavailable` for a user who may not load it."""
        try:
            self._link.load(self._source)
        except redis.exceptions.NoPermissionError as error:
            raise not_loaded(error) from error
        except redis.ResponseError as error:
            if "already exists" not in str(error):  # another process was quicker
                raise store_error(error) from error

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        parts = _in_parts([job.id.queue for job in jobs], SUBMIT_MAX)
        answers = self.run_all([ops.submit([jobs[place] for place in part], max_depth) for part in parts])
        found = {
            place: answer for part, own in zip(parts, answers, strict=True) for place, answer in zip(part, own, strict=True)
        }
        return [found[place] for place in range(len(jobs))]

    def claim(self, request: ClaimRequest) -> Claim:
        return self.run(ops.claim(request))

    def withdraw(self, queue: str, version: str, worker: str) -> bool:
        return self.run(ops.withdraw(queue, version, worker))

    def extend(
        self, queue: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId] = ()
    ) -> LeaseRenewal:
        return self.run(ops.extend(queue, worker, lease_s=lease_s, max_run_s=max_run_s, progressed=progressed))

    def finish(self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> list[Settled]:
        return self.run(ops.finish(endings, worker=worker, stamp=stamp))

    def finish_and_claim(
        self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp, request: ClaimRequest
    ) -> tuple[list[Settled], Claim]:
        """Settle one batch and take the next in one round trip."""
        finish, claim = ops.finish(endings, worker=worker, stamp=stamp), ops.claim(request)
        settled, next_batch = self._replies([finish, claim])
        return finish.decode(settled), claim.decode(next_batch)

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

    def report(self, reports: Sequence[Report]) -> list[Reported]:
        return self.run(ops.report(reports))

    def retry(
        self, items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str, traceback: str = ""
    ) -> list[Settled]:
        return self.run(ops.retry(items, worker=worker, delay_s=delay_s, code=code, message=message, traceback=traceback))

    def traceback(self, job: JobId) -> str:
        return self.send(ops.traceback(job))

    def release(self, items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = "") -> list[Settled]:
        return self.run(ops.release(items, worker=worker, reason=reason, detail=detail))

    def sweep(self, queue: str, *, gone: Sequence[str] = (), limit: int = 1_000) -> SweepReport:
        return self.run(ops.sweep(queue, gone=gone, limit=limit))

    def absent(self, queue: str, *, sweeper: str, pace_s: float, again_s: float) -> Absent:
        """Lease holders whose own channel has no subscriber: their process has ended or lost its link to Redis.

        For `pace_s` after a look, no other `sweeper` gets one. Gone is who is still missing `again_s` after the first look that
        missed it.
        """
        if self._link.is_unsettled(_SETTLE_S):
            return Absent()
        return self.run(ops.absent(queue, sweeper=sweeper, pace_s=pace_s, again_s=again_s))

    def cancel(self, job: JobId, *, owner: str = "") -> CancelStatus:
        return self.run(ops.cancel(job, owner=owner))

    def forget(self, jobs: Sequence[JobId]) -> int:
        parts = _in_parts([job.queue for job in jobs], FORGET_MAX)
        return sum(self.run_all([ops.forget([jobs[place] for place in part]) for part in parts]))

    def reconcile(self, queue: str, *, cursor: str = "0", limit: int = 1_000) -> Repair:
        return self.run(ops.reconcile(queue, cursor=cursor, limit=limit))

    def reconcile_next(self, queue: str, *, pace_s: float, heal_s: float, limit: int = 1_000) -> Repair:
        """`reconcile` the next page for all workers; nothing if any of them did so within `pace_s`, or within `heal_s` if more
        is due since then.
        """
        return self.run(ops.reconcile_next(queue, pace_s=pace_s, heal_s=heal_s, limit=limit))

    def may_send(self, queue: str) -> bool:
        """Whether messages can be sent to a queue of Celery's."""
        return self.run(celery_ops.may_send(queue))

    def reject_foreign(self, queue: str, rejected: Sequence[celery_ops.Rejected]) -> None:
        """Answer stock Celery messages that cannot become jobs, all in one round trip."""
        self.run_all([celery_ops.reject_foreign(queue, one) for one in rejected])

    def read(self, job: JobId) -> Job | None:
        return self.run(ops.read(job))

    def follow(
        self, job: JobId, *, mark: str = "", seen: int = 0, limit: int = 256, with_output: bool = False
    ) -> Followed | None:
        return self.run(ops.follow(job, mark=mark, seen=seen, limit=limit, with_output=with_output))

    def result(self, job: JobId) -> tuple[Job, Payload | None] | None:
        return self.run(ops.result(job))

    def results(self, jobs: Sequence[JobId]) -> list[tuple[Job, Payload | None] | None]:
        """`result` of each, in one round trip."""
        return self.run_all([ops.result(job) for job in jobs])

    def input(self, job: JobId) -> KeptInput | None:
        return self.run(ops.kept_input(job))

    def collected_owner(self, job: JobId) -> str | None:
        return self.send(ops.collected_owner(job))

    def was_collected(self, job: JobId) -> bool:
        return self.collected_owner(job) is not None

    def dismiss(self, jobs: Sequence[JobId]) -> int:
        return self.run(ops.dismiss(jobs)) if jobs else 0

    def newest(
        self, queue: str, index: JobIndex = JobIndex.ALL, *, owner: str = "", before: str = "", limit: int = 100, tag: str = ""
    ) -> list[JobId]:
        return self.run(ops.newest(queue, index, owner=owner, before=before, limit=limit, tag=tag))

    def records(self, jobs: Sequence[JobId]) -> list[Job]:
        return self.run(ops.records(jobs)) if jobs else []

    def stats(self, queue: str) -> QueueStats:
        return self.run(ops.stats(queue))

    def demand(self, queue: str, versions: Sequence[str]) -> Demand:
        """Cheaper than `stats`, for what asks each second."""
        return self.run(ops.demand(queue, versions))

    def unfinished(self, queue: str, version: str) -> Unfinished:
        """How many jobs of this version have not ended."""
        return self.run(ops.unfinished(queue, version))

    def models(self) -> list[ModelInfo]:
        return [found.info for found in self.stored_models().values() if found.info is not None]

    def stored_models(self) -> dict[str, StoredModel]:
        """The entries of `models` by model, to be replaced with `swap_model`."""
        return self.send(registry.models())

    def swap_model(self, name: str, found: StoredModel, wanted: ModelInfo | None) -> bool:
        """Replace `found` by `wanted`, or remove the entry if `wanted` is None; False if another process changed it first.

        The model's jobs stay.
        """
        return self.run(registry.swap_model(name, found, wanted))

    def announce_model(self, info: ModelInfo) -> None:
        self.send(registry.announce_model(info))

    def now(self) -> float:
        """The store's clock, as Unix seconds."""
        return self.send(registry.clock())

    def workers(self) -> list[WorkerInfo]:
        clock, entries = registry.clock(), registry.worker_entries()
        now, found = self._asked([clock.words, entries.words])
        return registry.fresh_workers(entries.decode(found), clock.decode(now))

    def announce_worker(self, info: WorkerInfo, *, ttl_s: float = 20.0) -> int:
        """The registry's edition: another number once its models or what its workers serve have changed."""
        return self.run(registry.announce_worker(info, ttl_s=ttl_s))

    def withdraw_worker(self, name: str) -> None:
        self.run(registry.withdraw_worker(name))

    def announce_place(self, place: SlotPlace) -> None:
        self.run(registry.announce_place(place))

    def rollouts(self) -> dict[str, Rollout]:
        """The operators' changes, by model."""
        return {name: found.rollout for name, found in self.stored_rollouts().items()}

    def stored_rollouts(self) -> dict[str, StoredRollout]:
        """The entries of `rollouts`, to be replaced with `swap_rollout`."""
        return self.send(registry.rollouts())

    def swap_rollout(self, model: str, found: StoredRollout, wanted: Rollout) -> bool:
        """Replace `found` by `wanted`; False if another process changed it first."""
        return self.run(registry.swap_rollout(model, found, wanted))

    def profile_wishes(self) -> dict[str, ProfileWish]:
        """The last profile request of each model, also when its time is over."""
        return self.send(registry.profile_wishes())

    def learned_times(self, model: str) -> dict[str, KeptTimes]:
        """How long batches of the model took, by version, device, runtime and threads."""
        return self.send(registry.learned_times(model))

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
        found = self._exist([key for _, key in pairs])
        return {serial for (serial, _), is_there in zip(pairs, found, strict=True) if is_there}

    def identity(self) -> str:
        """The random name that this store got when it was first asked; another Redis, or an emptied one, has another name."""
        return self.run(registry.identity(secrets.token_hex(16)))

    def _exist(self, keys: Sequence[str]) -> list[int]:
        # One command per key: a single EXISTS of a thousand keys would delay every other client's call.
        return self._asked([("EXISTS", key) for key in keys])

    def _asked(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to plain commands, in one round trip and in the form that redis-py gives them."""
        try:
            replies = self._link.answers(commands)
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        forms = self._redis.response_callbacks
        return [forms[words[0]](reply) if words[0] in forms else reply for words, reply in zip(commands, replies, strict=True)]


def _in_parts(queues: Sequence[str], most: int) -> list[list[int]]:
    """The places of the items, at most so many together, and all of one queue."""
    by_queue: dict[str, list[int]] = {}
    for place, queue in enumerate(queues):
        by_queue.setdefault(queue, []).append(place)
    return [places[i : i + most] for places in by_queue.values() for i in range(0, len(places), most)]
