"""The job store on Redis or Valkey, for one thread: each method calls the function of the same name."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import redis

from penstock.broker.contract import CancelStatus, ReleaseReason
from penstock.broker.records import (
    BatchStamp,
    Claim,
    ClaimRequest,
    Ending,
    GiveBack,
    KeptInput,
    LeaseRenewal,
    NewJob,
    QueueStats,
    Repair,
    Settled,
    Submitted,
    SweepReport,
    Unfinished,
)
from penstock.broker.store import encoding as enc
from penstock.broker.store.connection import connect
from penstock.broker.store.library import library
from penstock.broker.store.registry import (
    MODELS_KEY,
    PLACE_TTL_S,
    PROFILES_KEY,
    ROLLOUTS_KEY,
    STORE_KEY,
    WORKERS_KEY,
    StoredModel,
    StoredRollout,
    fresh_workers,
    place_key,
    stored_models,
    stored_rollouts,
    swap_args,
    worker_entry,
)
from penstock.errors import StoreUnavailable
from penstock.job import Job, Payload
from penstock.job_id import JobId
from penstock.model_spec import ModelInfo, ProfileWish, SlotPlace, WorkerInfo
from penstock.rollout import Rollout

_AWAY = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, OSError)
# redis-py has classes for some refusals and cuts their code off the message; the others keep it.
_REFUSALS = (redis.OutOfMemoryError, redis.ReadOnlyError, redis.exceptions.MasterDownError)
_REFUSED = ("MISCONF", "NOREPLICAS")
_FORBIDDEN_HINT = "give this Redis user the rights that `penstock store users` prints"
# Lua passes at most some 8,000 values to one Redis command; submit.lua refuses more jobs than this.
_MOST_JOBS = 1_000
Call = tuple[str, str, Sequence[enc.Arg]]


def store_error(error: Exception) -> Exception:
    """The error our callers know: `StoreUnavailable` when Redis is away or refuses writes, else the error itself."""
    if isinstance(error, _AWAY):
        return StoreUnavailable(f"Redis cannot be reached: {error}", hint="see `penstock doctor`")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreUnavailable(f"Redis does not allow this user what it needs: {error}", hint=_FORBIDDEN_HINT)
    if isinstance(error, _REFUSALS) or (isinstance(error, redis.ResponseError) and str(error).startswith(_REFUSED)):
        return StoreUnavailable(f"Redis refuses to write: {error}", hint="see `penstock doctor`")
    return error


def not_loaded(error: Exception) -> StoreUnavailable:
    """Our functions are missing and this user may not load them: what its administrator has to do."""
    return StoreUnavailable(
        f"Redis lacks the functions of this version of penstock, and this user may not load them: {error}",
        hint="load them as an administrator: penstock store load --redis-url URL (`penstock up` does it for its own store)",
    )


class RedisStore:
    """See `JobStore`. Not thread-safe; opens its connection on first use. Nothing is repeated silently."""

    def __init__(self, url: str, *, name: str = "", source: str | None = None) -> None:
        self._redis = connect(url, name=name)
        self._suffix, self._source = library(source)

    def close(self) -> None:
        self._redis.close()

    def call(self, name: str, key: str, args: Sequence[enc.Arg]) -> Any:
        """The reply of one function on a key of its own, for what is stored beside jobs."""
        return self._answers([(name, key, args)])[0]

    def _run(self, *calls: Call) -> list[Any]:
        """Replies of functions on models, sent in one round trip."""
        return self._answers([(name, enc.prefix(model), args) for name, model, args in calls])

    def _answers(self, calls: Sequence[Call]) -> list[Any]:
        """Loads the library first where Redis does not have it."""
        try:
            return self._send_loaded(calls)
        except (redis.ResponseError, *_AWAY) as error:
            raise store_error(error) from error

    def _send_loaded(self, calls: Sequence[Call]) -> list[Any]:
        try:
            return self._send(calls)
        except redis.ResponseError as error:
            if "Function not found" not in str(error):
                raise
        self.load_functions()
        return self._send(calls)

    def _send(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [self._redis.execute_command(*self._command(*calls[0]))]
        pipe = self._redis.pipeline(transaction=False)
        for call in calls:
            pipe.execute_command(*self._command(*call))
        return list(pipe.execute())

    def _command(self, name: str, key: str, args: Sequence[enc.Arg]) -> tuple[Any, ...]:
        return ("FCALL", f"penstock_{name}_{self._suffix}", 1, key, *args)

    def load_functions(self) -> None:
        """Nothing, where they are loaded already. Raises `StoreUnavailable` for a user who may not load them."""
        try:
            self._redis.function_load(self._source)
        except redis.exceptions.NoPermissionError as error:
            raise not_loaded(error) from error
        except redis.ResponseError as error:
            if "already exists" not in str(error):  # another process was quicker
                raise store_error(error) from error

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        model = jobs[0].id.model
        parts = (jobs[i : i + _MOST_JOBS] for i in range(0, len(jobs), _MOST_JOBS))
        replies = self._run(*(("submit", model, enc.submit_args(part, max_depth)) for part in parts))
        return [answer for reply in replies for answer in enc.submit_reply(reply, model)]

    def claim(self, request: ClaimRequest) -> Claim:
        [reply] = self._run(("claim", request.model, enc.claim_args(request)))
        return enc.claim_reply(reply, request.model)

    def extend(
        self, model: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId] = ()
    ) -> LeaseRenewal:
        serials = [job.serial for job in progressed]
        [reply] = self._run(("extend", model, [worker, enc.ms(lease_s), enc.ms(max_run_s), *serials]))
        return enc.beat_reply(reply, model)

    def finish(self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> list[Settled]:
        [reply] = self._run(("finish", endings[0].id.model, enc.finish_args(endings, worker, stamp)))
        return _settled(reply)

    def finish_and_claim(
        self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp, request: ClaimRequest
    ) -> tuple[list[Settled], Claim]:
        """Settle one batch and take the next in one round trip."""
        done, next_batch = self._run(
            ("finish", request.model, enc.finish_args(endings, worker, stamp)),
            ("claim", request.model, enc.claim_args(request)),
        )
        return _settled(done), enc.claim_reply(next_batch, request.model)

    def retry(self, items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str) -> list[Settled]:
        args = [worker, enc.ms(delay_s), code, message, *enc.pairs(items)]
        [reply] = self._run(("retry", items[0].id.model, args))
        return _settled(reply)

    def release(self, items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = "") -> list[Settled]:
        [reply] = self._run(("release", items[0].id.model, [worker, reason.value, detail, *enc.pairs(items)]))
        return _settled(reply)

    def sweep(self, model: str, *, gone: Sequence[str] = (), limit: int = 1_000) -> SweepReport:
        [reply] = self._run(("sweep", model, [limit, *gone]))
        return enc.sweep_reply(reply, model)

    def absent(self, model: str) -> list[str]:
        """Lease holders whose own channel nobody listens to: their process is gone, or its link to Redis is."""
        [reply] = self._run(("absent", model, []))
        return [name.decode() for name in reply]

    def cancel(self, job: JobId, *, owner: str = "") -> CancelStatus:
        [reply] = self._run(("cancel", job.model, [job.serial, owner]))
        return CancelStatus(reply.decode())

    def forget(self, jobs: Sequence[JobId]) -> int:
        [reply] = self._run(("forget", jobs[0].model, [job.serial for job in jobs]))
        return int(reply)

    def reconcile(self, model: str, *, cursor: str = "0", limit: int = 1_000) -> Repair:
        [reply] = self._run(("reconcile", model, [cursor, limit]))
        return Repair(reply[0].decode(), *reply[1:])

    def reject_foreign(self, model: str, message: bytes, *, celery_id: str, reason: str) -> None:
        """Answer a stock Celery message that cannot become a job."""
        self._run(("reject_foreign", model, [message, celery_id, reason]))

    def read(self, job: JobId) -> Job | None:
        [reply] = self._run(("read", job.model, [job.serial, "0"]))
        found = enc.read_reply(reply, job)
        return found and found[0]

    def result(self, job: JobId) -> tuple[Job, Payload | None] | None:
        [reply] = self._run(("read", job.model, [job.serial, "1"]))
        return enc.read_reply(reply, job)

    def results(self, jobs: Sequence[JobId]) -> list[tuple[Job, Payload | None] | None]:
        """`result` of each, in one round trip."""
        replies = self._run(*(("read", job.model, [job.serial, "1"]) for job in jobs))
        return [enc.read_reply(reply, job) for reply, job in zip(replies, jobs, strict=True)]

    def input(self, job: JobId) -> KeptInput | None:
        [reply] = self._run(("input", job.model, [job.serial]))
        return enc.input_reply(reply)

    def collected_owner(self, job: JobId) -> str | None:
        owner = self._plain(lambda r: r.get(f"{enc.prefix(job.model)}tomb:{job.serial}"))
        return None if owner is None else owner.decode()

    def was_collected(self, job: JobId) -> bool:
        return self.collected_owner(job) is not None

    def jobs(self, model: str, *, before: str = "", limit: int = 100) -> list[Job]:
        [reply] = self._run(("list", model, [before, limit]))
        return enc.list_reply(reply, model)

    def inbox(self, model: str, *, before: str = "", limit: int = 100) -> list[Job]:
        [reply] = self._run(("inbox", model, [before, limit]))
        return enc.list_reply(reply, model)

    def stats(self, model: str) -> QueueStats:
        [reply] = self._run(("stats", model, []))
        return enc.stats_reply(reply, model)

    def models(self) -> list[ModelInfo]:
        return [found.info for found in self.stored_models().values() if found.info is not None]

    def stored_models(self) -> dict[str, StoredModel]:
        """The same by model, to be replaced with `swap_model`."""
        return stored_models(self._plain(lambda r: r.hgetall(MODELS_KEY)))

    def swap_model(self, name: str, found: StoredModel, wanted: ModelInfo | None) -> bool:
        """Replace `found` by `wanted` (None: forget it; its jobs stay); False when somebody else was quicker."""
        return bool(self.call("swap", MODELS_KEY, swap_args(name, found, wanted)))

    def announce_model(self, info: ModelInfo) -> None:
        self._plain(lambda r: r.hset(MODELS_KEY, info.name, msgspec.json.encode(info)))

    def workers(self) -> list[WorkerInfo]:
        return fresh_workers(self._plain(lambda r: r.hgetall(WORKERS_KEY)), time.time())

    def announce_worker(self, info: WorkerInfo, *, ttl_s: float = 20.0) -> None:
        self._plain(lambda r: r.hset(WORKERS_KEY, info.name, worker_entry(info, time.time(), ttl_s)))

    def announce_place(self, place: SlotPlace) -> None:
        self._plain(lambda r: r.set(place_key(place.slot), msgspec.json.encode(place), ex=PLACE_TTL_S))

    def withdraw_worker(self, name: str) -> None:
        self._plain(lambda r: r.hdel(WORKERS_KEY, name))

    def rollouts(self) -> dict[str, Rollout]:
        """What operators changed, by model."""
        return {name: found.rollout for name, found in self.stored_rollouts().items()}

    def stored_rollouts(self) -> dict[str, StoredRollout]:
        """The same, to be replaced with `swap_rollout`."""
        return stored_rollouts(self._plain(lambda r: r.hgetall(ROLLOUTS_KEY)))

    def swap_rollout(self, model: str, found: StoredRollout, wanted: Rollout) -> bool:
        """Replace `found` by `wanted`; False when somebody else was quicker."""
        return bool(self.call("swap", ROLLOUTS_KEY, swap_args(model, found, wanted)))

    def profile_wishes(self) -> dict[str, ProfileWish]:
        """The last wish of each model, those that are over included."""
        found = self._plain(lambda r: r.hgetall(PROFILES_KEY))
        return {name.decode(): msgspec.json.decode(entry, type=ProfileWish) for name, entry in found.items()}

    def unfinished(self, model: str, version: str) -> Unfinished:
        """How many jobs of this version have not ended."""
        [reply] = self._run(("unfinished", model, [version]))
        return Unfinished(*map(int, reply))

    def known(self, serials: Sequence[str]) -> set[str]:
        """Those of `serials` that have a record in any model of the registry; all, if that is empty and nothing can be said."""
        prefixes = [enc.prefix(model.name) for model in self.models()]
        if not prefixes:
            return set(serials)
        asked = [(serial, f"{prefix}job:{serial}") for serial in serials for prefix in prefixes]
        found = self._plain(lambda r: _exist(r, [key for _, key in asked]))
        return {serial for (serial, _), there in zip(asked, found, strict=True) if there}

    def identity(self) -> str:
        """The name this store was given when it was first asked; another Redis, or one that came back empty, has another."""

        def named(r: redis.Redis) -> str:
            r.set(STORE_KEY, secrets.token_hex(16), nx=True)
            return str(r.get(STORE_KEY).decode())  # type: ignore[union-attr]

        return str(self._plain(named))

    def _plain(self, command: Callable[[redis.Redis], Any]) -> Any:
        try:
            return command(self._redis)
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error


def _exist(client: redis.Redis, keys: Sequence[str]) -> list[int]:
    # One command per key: a thousand keys in one EXISTS would hold up everybody else's call.
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.exists(key)
    return list(pipe.execute())


def _settled(reply: Sequence[bytes]) -> list[Settled]:
    return [Settled(answer.decode()) for answer in reply]
