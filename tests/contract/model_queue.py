"""One queue of one model on one store, with a short method for each thing that tests do to the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from penstock.broker.contract import JobIndex, ReleaseReason
from penstock.broker.records import BatchStamp, Claim, ClaimedJob, ClaimRequest, Ending, GiveBack, NewJob, Settled, Submitted
from penstock.broker.store.sync import RedisStore
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.extensions.splits import store as splits
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import Call, Job, JobId, JobState, Payload, Priority, job_in, new_serial
from tests.contract.dumps import Dump
from tests.oracle.store import StoreOracle

# What holds for the one holds for the other.
JobStore = StoreOracle | RedisStore

STAMP = BatchStamp(id="batch-1", size=1, reason="idle", inference_s=0.25)
OUTPUT = Payload("application/json", b'{"square":49}')


class ModelQueue:
    """Every method calls the store's own methods, with defaults for everything that a test does not care about."""

    def __init__(self, store: JobStore, name: str, dump: Callable[[], Dump]) -> None:
        self.store = store
        self.name = name
        self.dump = dump
        self._nonces = (f"nonce{n}" for n in count())

    def new_id(self) -> JobId:
        return job_in(new_serial(), self.name)

    def new(
        self, *, webhook: Webhook | None = None, split: str = "", celery_id: str = "", message: bytes = b"", **changes: Any
    ) -> NewJob:
        plain = NewJob(id=self.new_id(), version="1", input=Payload("application/json", b"7"))
        job = replace(plain, **changes)
        words: dict[str, bytes | str] = {splits.WORD: split} if split else {}
        if webhook is not None:
            words |= webhook.word_of(job.owner)
        if celery_id or message:
            words |= celery_ops.word_of(celery_id, message)
        return replace(job, words=words)

    def put(self, job: NewJob, *, max_depth: int = 10_000) -> Submitted:
        [answer] = self.store.submit([job], max_depth=max_depth)
        return answer

    def submit(self, **changes: Any) -> JobId:
        return self.put(self.new(**changes)).id

    def bulk(self, **changes: Any) -> JobId:
        return self.submit(priority=Priority.BULK, **changes)

    def claim(self, worker: str = "w1", *, limit: int = 8, **changes: Any) -> Claim:
        ask = ClaimRequest(queue=self.name, version="1", worker=worker, nonce=next(self._nonces), limit=limit)
        return self.store.claim(replace(ask, **changes))

    def shard(self, **changes: Any) -> JobId:
        return self.bulk(call=Call.SHARD, **changes)

    def take_shard(self, worker: str = "w1", **changes: Any) -> ClaimedJob:
        [job] = self.claim(worker, shard=True, **changes).jobs
        return job

    def take(self, worker: str = "w1", **changes: Any) -> ClaimedJob:
        """Claim exactly one job."""
        [job] = self.claim(worker, limit=1, **changes).jobs
        return job

    def leased(self, worker: str = "w1", *, lease_s: float = 15.0, **changes: Any) -> ClaimedJob:
        """Submit one job and let `worker` claim it."""
        self.submit(**changes)
        return self.take(worker, lease_s=lease_s)

    def finish(self, job: ClaimedJob, *, worker: str = "w1", output: Payload = OUTPUT, token: str = "") -> Settled:
        ending = Ending(job.id, token or job.token, JobState.SUCCEEDED, output=output)
        return self.finish_all([ending], worker=worker)[0]

    def fail(self, job: ClaimedJob, *, worker: str = "w1", code: str = "bad_input") -> Settled:
        ending = Ending(job.id, job.token, JobState.FAILED, error_code=code, error_message="not a number")
        return self.finish_all([ending], worker=worker)[0]

    def finish_all(self, endings: Sequence[Ending], *, worker: str = "w1") -> list[Settled]:
        return self.store.finish(endings, worker=worker, stamp=STAMP)

    def retry(self, job: ClaimedJob, *, worker: str = "w1", delay_s: float = 0.0) -> Settled:
        items = [GiveBack(job.id, job.token)]
        [answer] = self.store.retry(items, worker=worker, delay_s=delay_s, code="handler_error", message="try again")
        return answer

    def release(self, job: ClaimedJob, reason: ReleaseReason = ReleaseReason.DRAIN, *, worker: str = "w1") -> Settled:
        [answer] = self.store.release([GiveBack(job.id, job.token)], worker=worker, reason=reason)
        return answer

    def crash(self, job: ClaimedJob, *, worker: str = "w1") -> Settled:
        return self.release(job, ReleaseReason.CRASHED, worker=worker)

    def read(self, job: JobId) -> Job:
        found = self.store.read(job)
        assert found is not None, f"{job} is not stored"
        return found

    def listed(self, index: JobIndex = JobIndex.ALL, *, before: str = "", limit: int = 100) -> list[Job]:
        """The records of an index, newest first."""
        return self.store.records(self.store.newest(self.name, index, before=before, limit=limit))

    def state(self, job: JobId) -> JobState:
        return self.read(job).state

    def place(self, job: JobId) -> str:
        """Return the one index that lists the job, or '' for a final job."""
        return ",".join(self.dump().jobs[job.serial].places)
