"""The job store in plain memory, with which tests compare the real one: the same rules, and a clock that a test moves. It knows
no webhooks: what becomes of events is tested on the real store alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from penstock.broker.contract import CancelStatus, JobIndex, ReleaseReason
from penstock.broker.records import (
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
    SubmitStatus,
    Submitted,
    SweepReport,
    Unfinished,
)
from penstock.job import Job, JobError, JobId, JobProgress, JobState, Payload, job_in, model_of, served_as
from penstock.model_spec import ModelInfo, WorkerInfo
from tests.oracle.claim import Gathering
from tests.oracle.model_queue import IDEMPOTENCY_S, RUN_PAST_DEADLINE_S, KeyUse, QueueOracle, batch_record
from tests.oracle.record import Record

_Item = TypeVar("_Item", Ending, GiveBack)


class StoreOracle:
    """It has the methods of `RedisStore`, one for each Redis Function. `clock` answers Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._queues: dict[str, QueueOracle] = {}
        self._models: dict[str, ModelInfo] = {}
        self._workers: dict[str, tuple[WorkerInfo, float]] = {}

    def close(self) -> None:
        self._queues.clear()

    def queue(self, name: str) -> QueueOracle:
        """The inner state of one queue, for tests that check the invariants."""
        if name not in self._queues:
            self._queues[name] = QueueOracle(name)
        return self._queues[name]

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        answers = [self._submit_one(job, max_depth) for job in jobs]
        return [replace(answer, depth=self.queue(answer.id.queue).depth) for answer in answers]

    def claim(self, request: ClaimRequest) -> Claim:
        return Gathering(self.queue(request.queue), request, self._clock()).claim()

    def retire(self, queue: str, version: str = "") -> Unfinished:
        return self.queue(queue).retire(version, now=self._clock())

    def retired(self, queue: str) -> dict[str, int]:
        return dict(self.queue(queue).retired)

    def reopen(self, queue: str, version: str, since: int) -> bool:
        return self.queue(queue).reopen(version, since)

    def advance(self, queue: str, placing: int) -> None:
        inner = self.queue(queue)
        inner.placing = max(inner.placing, placing)

    def withdraw(self, queue: str, version: str, worker: str) -> bool:
        # Nobody listens to this store, so no offer is ever used, and none is kept.
        return False

    def extend(
        self, queue: str, worker: str, *, lease_s: float, max_run_s: float, progressed: Sequence[JobId] = ()
    ) -> LeaseRenewal:
        inner, now = self.queue(queue), self._clock()
        if worker not in inner.leases:
            return LeaseRenewal(lost=True)
        inner.leases[worker] = now + lease_s
        for record in self._held(inner, worker):
            if record.new.id in progressed:
                record.held_at = now
        overrun = [r for r in self._held(inner, worker) if now - r.held_at >= max_run_s]
        for record in overrun:
            self._charge_crash(inner, record, now)
        cancelled = [r.new.id for r in self._held(inner, worker) if r.cancel_requested]
        return LeaseRenewal(cancelled=tuple(cancelled), overrun=tuple(r.new.id for r in overrun))

    def finish(self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> list[Settled]:
        now, places = self._clock(), {ending.id: place for place, ending in enumerate(endings, 1)}

        def end(queue: QueueOracle, record: Record, ending: Ending) -> Settled:
            error = JobError(ending.error_code, ending.error_message) if ending.error_code else None
            record.batch = batch_record(stamp, record.worker, places[ending.id])
            record.output = ending.output if ending.state is JobState.SUCCEEDED else None
            record.traceback = (record.epoch, ending.traceback) if ending.traceback else record.traceback
            queue.end(record, ending.state, now=now, error=error, token=ending.token)
            return Settled.OK

        return [self._settle(ending, end) for ending in endings]

    def report(self, reports: Sequence[Report]) -> list[Reported]:
        return [self._report(report) for report in reports]

    def _report(self, report: Report) -> Reported:
        _, record = self._find(report.id)
        if record is None or record.state is not JobState.LEASED or record.token != report.token:
            return Reported.STALE
        if not record.append_chunks(report.restarts, report.before, report.chunks):
            self.release([GiveBack(report.id, report.token)], worker=record.worker, reason=ReleaseReason.UNSTARTED)
            return Reported.STALE
        if report.fraction is not None:
            record.progress = JobProgress(report.fraction, report.note, self._clock(), record.epoch)
        return Reported.CANCELLED if record.cancel_requested else Reported.OK

    def retry(
        self, items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str, traceback: str = ""
    ) -> list[Settled]:
        now = self._clock()

        def delay(queue: QueueOracle, record: Record, item: GiveBack) -> Settled:
            record.error = JobError(code, message)
            record.traceback = (record.epoch, traceback) if traceback else record.traceback
            if record.charged < record.new.max_attempts:
                record.note(now=now, how="retried", delay_s=delay_s)
                queue.delay(record, until=now + delay_s)
                queue.counters["retried"] += 1
                return Settled.OK
            queue.end(record, JobState.FAILED, now=now, error=record.error, token=item.token)
            return Settled.DEAD

        return [self._settle(item, delay) for item in items]

    def release(self, items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = "") -> list[Settled]:
        now = self._clock()

        def requeue(queue: QueueOracle, record: Record, item: GiveBack) -> Settled:
            if reason is ReleaseReason.CRASHED:
                return Settled.DEAD if queue.crash(record, now=now, token=item.token, detail=detail) else Settled.OK
            give_back = queue.put_aside if reason is ReleaseReason.READING else queue.give_back
            give_back(record, now=now)
            return Settled.OK

        return [self._settle(item, requeue) for item in items]

    def sweep(self, queue: str, *, gone: Sequence[str] = (), limit: int = 1_000) -> SweepReport:
        inner, now = self.queue(queue), self._clock()
        inner.changes.clear()
        # Only what has ended before is collected, so that jobs that end in this sweep can be read until the next one.
        over = [r for r in inner.records.values() if r.state.final and r.collect_at <= now]
        report = self._take_back(inner, gone, limit=limit, now=now)
        report = self._promote(inner, report, limit=limit - report.moved, now=now)
        report = self._expire(inner, report, limit=limit - report.moved, now=now)
        report = self._collect(inner, report, over[: limit - report.moved], now=now)
        return replace(report, changes=tuple(inner.changes), more=report.moved >= limit)

    def cancel(self, job: JobId, *, owner: str = "") -> CancelStatus:
        queue, record = self._find(job)
        if record is None or record.new.owner != owner:
            return CancelStatus.MISSING
        if record.state.final:
            return CancelStatus.FINAL
        if record.state is JobState.LEASED:
            record.cancel_requested = True
            return CancelStatus.REQUESTED
        queue.cancel(record, now=self._clock())
        return CancelStatus.CANCELLED

    def forget(self, jobs: Sequence[JobId]) -> int:
        queue = self.queue(jobs[0].queue)
        taken = [record for job in jobs if (record := queue.records.get(job.serial)) and record.state is JobState.SUCCEEDED]
        for record in taken:
            queue.forget(record, now=self._clock())
        queue.counters["collected"] += len(taken)
        return len(taken)

    def reconcile(self, queue: str, *, cursor: str = "0", limit: int = 1_000) -> Repair:
        inner = self.queue(queue)
        orphans = inner.homeless()
        for record in orphans:
            if record.state is JobState.LEASED:
                record.note(now=self._clock(), how="worker_lost")
                record.attempts -= 1
            if record.state is JobState.DELAYED and (record.not_before or 0.0) > self._clock():
                inner.delay(record, until=record.not_before or 0.0)
            else:
                inner.enqueue(record)
        inner.counters["repaired"] += len(orphans)
        return Repair(cursor="0", scanned=len(inner.records), orphans=len(orphans))

    def read(self, job: JobId) -> Job | None:
        queue, record = self._find(job)
        return None if record is None else record.job(queue.position(record))

    def traceback(self, job: JobId) -> str:
        _, record = self._find(job)
        attempt, text = record.traceback if record else (0, "")
        return text if record and attempt == record.epoch else ""

    def result(self, job: JobId) -> tuple[Job, Payload | None] | None:
        queue, record = self._find(job)
        return None if record is None else (record.job(queue.position(record)), record.output)

    def input(self, job: JobId) -> KeptInput | None:
        _, record = self._find(job)
        return None if record is None else record.kept_input

    def follow(
        self, job: JobId, *, mark: str = "", seen: int = 0, limit: int = 256, with_output: bool = False
    ) -> Followed | None:
        queue, record = self._find(job)
        return None if record is None else record.followed(queue.position(record), mark, seen, limit, with_output=with_output)

    def collected_owner(self, job: JobId) -> str | None:
        until, owner = self.queue(job.queue).tombstones.get(job.serial, (0.0, ""))
        return owner if until > self._clock() else None

    def dismiss(self, jobs: Sequence[JobId]) -> int:
        found = [(queue, record) for queue, record in map(self._find, jobs) if record and record.serial in queue.inbox]
        for queue, record in found:
            queue.inbox.discard(record.serial)
            record.dismissed = True
        return len(found)

    def newest(
        self, queue: str, index: JobIndex = JobIndex.ALL, *, owner: str = "", before: str = "", limit: int = 100, tag: str = ""
    ) -> list[JobId]:
        records = self.queue(queue).records
        serials = self.queue(queue).inbox if index is JobIndex.INBOX else records.keys()
        found = [s for s in serials if (not before or s < before) and owner in ("", records[s].new.owner)]
        found = [s for s in found if index is not JobIndex.TAGGED or tag in records[s].new.tags]
        return [job_in(serial, queue) for serial in sorted(found, reverse=True)[:limit]]

    def records(self, jobs: Sequence[JobId]) -> list[Job]:
        return [found for job in jobs if (found := self.read(job)) is not None]

    def stats(self, queue: str) -> QueueStats:
        inner, now = self.queue(queue), self._clock()
        return QueueStats(
            model=model_of(queue),
            now=now,
            ready=inner.depth_by_band(),
            oldest_age_s=inner.oldest_age_by_band(now),
            solo=len(inner.solo),
            delayed=len(inner.delayed),
            leased=inner.leased,
            inbox=len(inner.inbox),
            due=inner.due(now),
            **inner.counted(),
        )

    def models(self) -> list[ModelInfo]:
        return [self._models[name] for name in sorted(self._models)]

    def announce_model(self, info: ModelInfo) -> None:
        self._models[info.name] = info

    def workers(self) -> list[WorkerInfo]:
        now = self._clock()
        return [info for _, (info, until) in sorted(self._workers.items()) if until > now]

    def announce_worker(self, info: WorkerInfo, *, ttl_s: float = 20.0) -> None:
        now = self._clock()
        self._workers[info.name] = (replace(info, seen_at=now), now + ttl_s)

    def withdraw_worker(self, name: str) -> None:
        self._workers.pop(name, None)

    def _find(self, job: JobId) -> tuple[QueueOracle, Record | None]:
        queue = self.queue(job.queue)
        return queue, queue.records.get(job.serial)

    def _held(self, queue: QueueOracle, worker: str) -> list[Record]:
        return [queue.records[serial] for serial in sorted(queue.held.get(worker, ()))]

    def _submit_one(self, job: NewJob, max_depth: int) -> Submitted:
        queue, now = self.queue(job.id.queue), self._clock()
        known = self._known(queue, job, now)
        refusal = queue.refusal(job, max_depth) if known is None else None
        if refusal is not None:
            return Submitted(refusal, job.id, queue.depth)
        if known is not None:
            return known
        self._store(queue, job, now)
        return Submitted(SubmitStatus.CREATED, job.id, queue.depth)

    def _known(self, queue: QueueOracle, job: NewJob, now: float) -> Submitted | None:
        use = queue.keys.get((job.owner, job.idempotency_key)) if job.idempotency_key else None
        if use is not None and use.forget_at > now:
            status = SubmitStatus.EXISTING if use.fingerprint == job.fingerprint else SubmitStatus.KEY_REUSED
            return Submitted(status, use.id, queue.depth)
        if job.id.serial in queue.records:
            return Submitted(SubmitStatus.EXISTING, job.id, queue.depth)
        return None

    def _store(self, queue: QueueOracle, job: NewJob, now: float) -> None:
        record = Record(job, created_at=now, deadline_at=now + job.deadline_s, band=served_as(job.priority, job.call).band)
        queue.records[record.serial] = record
        if record.not_before is not None:
            queue.delay(record, until=record.not_before)
        else:
            record.ahead = queue.ahead_of(record)
            queue.enqueue(record)
        if job.replay_of is not None:
            queue.mark_replayed(job.replay_of, job.id)
        queue.accepted += 1
        if job.idempotency_key:
            kept_s = max(IDEMPOTENCY_S, job.deadline_s + job.result_ttl_s + RUN_PAST_DEADLINE_S)
            queue.keys[job.owner, job.idempotency_key] = KeyUse(job.fingerprint, job.id, now + kept_s)

    def _settle(self, item: _Item, settle: Callable[[QueueOracle, Record, _Item], Settled]) -> Settled:
        queue, record = self._find(item.id)
        if record is not None and item.token and item.token == record.final_token:
            return Settled.ALREADY
        if record is None or record.state is not JobState.LEASED or record.token != item.token:
            queue.counters["stale"] += 1
            return Settled.STALE
        if record.cancel_requested:
            queue.cancel(record, now=self._clock(), token=item.token)
            return Settled.CANCELLED
        return settle(queue, record, item)

    def _charge_crash(self, queue: QueueOracle, record: Record, now: float) -> None:
        if record.cancel_requested:
            record.note(now=now, how="cancelled")
            queue.cancel(record, now=now)
        else:
            queue.crash(record, now=now)

    def _take_back(self, queue: QueueOracle, gone: Sequence[str], *, limit: int, now: float) -> SweepReport:
        """A worker keeps its lease until all its jobs are back: a sweep that meets its limit before goes on with the rest the
        next time.
        """
        ends = {JobState.QUEUED: 0, JobState.CANCELLED: 0, JobState.DEAD: 0, JobState.EXPIRED: 0}
        lost: list[str] = []
        held: list[Record] = []
        for worker in [worker for worker, until in queue.leases.items() if until <= now or worker in gone]:
            held += self._held(queue, worker)[: limit - len(held)]
            if len(held) >= limit:
                break
            lost.append(worker)
        queue.counters["loss_events"] += bool(held)
        for record in sorted(held, key=lambda record: record.serial):
            ends[self._redeliver(queue, record, now)] += 1
        for worker in lost:
            queue.leases.pop(worker)
        return SweepReport(
            requeued=ends[JobState.QUEUED],
            dead=ends[JobState.DEAD],
            expired=ends[JobState.EXPIRED],
            cancelled=ends[JobState.CANCELLED],
            workers_lost=tuple(lost),
        )

    def _redeliver(self, queue: QueueOracle, record: Record, now: float) -> JobState:
        queue.tell("lost", record, JobState.LEASED)
        record.note(now=now, how="worker_lost")
        if record.cancel_requested:
            queue.cancel(record, now=now)
        elif record.lose(queue.counters["loss_events"]):
            message = f"given up: {record.losses} workers were lost while they held it"
            queue.end(record, JobState.DEAD, now=now, error=JobError("worker_lost", message))
        elif record.deadline_at <= now:
            queue.expire(record, now=now)
        else:
            queue.enqueue(record)
            queue.counters["redelivered:worker_lost"] += 1
        return record.state

    def _promote(self, queue: QueueOracle, report: SweepReport, *, limit: int, now: float) -> SweepReport:
        due = [r for r in queue.waiting() if r.state is JobState.DELAYED and r.due_at <= now < r.deadline_at]
        for record in due[:limit]:
            queue.enqueue(record)
        return replace(report, promoted=len(due[:limit]))

    def _expire(self, queue: QueueOracle, report: SweepReport, *, limit: int, now: float) -> SweepReport:
        late = [r for r in queue.waiting() if r.deadline_at <= now][:limit]
        for record in late:
            queue.expire(record, now=now)
        return replace(report, expired=report.expired + len(late))

    def _collect(self, queue: QueueOracle, report: SweepReport, over: Sequence[Record], *, now: float) -> SweepReport:
        blobs = [blob for record in over for blob in record.own_blobs]
        for record in over:
            queue.collect(record, now=now)
        queue.counters["collected"] += len(over)
        return replace(report, collected=len(over), blobs=tuple(blobs))
