"""One queue's jobs in plain memory: the records, the places where a live job can be, and the moves between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.broker.records import BatchStamp, Change, NewJob, SubmitStatus, Unfinished
from penstock.job import BANDS, LATE_BAND, BatchRecord, JobError, JobId, JobState, served_as
from tests.oracle.record import Record
from tests.oracle.turns import OwnerTurns

# A tombstone lives as long as the result was kept, within these bounds: a day for each answer-now request would take gigabytes.
TOMBSTONE_MIN_S, TOMBSTONE_MAX_S = 60.0, 86_400.0
IDEMPOTENCY_S, RUN_PAST_DEADLINE_S = 172_800.0, 3_600.0
# As in functions/lib.lua.
LOST_PLACE = 2.0**42
FEW = 16
EXPIRED = JobError("expired", "the deadline passed before the job finished")
INBOX = (JobState.FAILED, JobState.DEAD, JobState.EXPIRED)
CANCELLED = JobError("cancelled", "cancelled by request")


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The first use of an idempotency key."""

    fingerprint: str
    id: JobId
    forget_at: float


@dataclass(slots=True)
class QueueOracle:
    """The state of one queue. `leases` maps a worker to the end of its lease, `held` to the serials it runs."""

    name: str
    records: dict[str, Record] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    shards: set[str] = field(default_factory=set)
    solo: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    held: dict[str, set[str]] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    keys: dict[tuple[str, str], KeyUse] = field(default_factory=dict)
    turns: OwnerTurns = field(default_factory=OwnerTurns)
    retired: dict[str, int] = field(default_factory=dict)
    placing: int = 0
    inbox: set[str] = field(default_factory=set)
    tombstones: dict[str, tuple[float, str]] = field(default_factory=dict)
    accepted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    changes: list[Change] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return self.ordinary + len(self.shards)

    def refusal(self, job: NewJob, most: int) -> SubmitStatus | None:
        """Why this job may not be stored, if so. A job with a delay counts those that are put aside too."""
        if not self.retired.keys().isdisjoint(("", job.version)):
            return SubmitStatus.RETIRED
        if job.idempotency_key and job.placing is not None and job.placing < self.placing:
            return SubmitStatus.MOVED
        if self.depth + (len(self.delayed) if job.delay_s > 0.0 else 0) >= most:
            return SubmitStatus.FULL
        is_full = job.owner and 0 < job.max_open_jobs <= self.open_jobs()[job.owner]
        return SubmitStatus.QUOTA if is_full else None

    def unfinished(self, version: str) -> Unfinished:
        """The jobs of a version that have not ended."""
        states = Counter(record.state for record in self.records.values() if record.new.version == version)
        return Unfinished(states[JobState.QUEUED] + states[JobState.DELAYED], states[JobState.LEASED])

    def retire(self, version: str, *, now: float) -> Unfinished:
        """Take no more jobs of the version, empty: of any, if all have ended; returns what has not."""
        left = self.unfinished(version) if version else Unfinished(len(self.records), 0)
        if left == Unfinished(0, 0):
            self.retired[version] = round(now * 1000)
            self.forget_version(version)
        return left

    def reopen(self, version: str, since: int) -> bool:
        return self.retired.get(version) == since and self.retired.pop(version) == since

    def give_back(self, record: Record, *, now: float) -> None:
        record.note(now=now, how="released")
        record.attempts -= 1
        self.enqueue(record)
        self.counters["redelivered:given_back"] += 1

    def put_aside(self, record: Record, *, now: float) -> None:
        """Give the job back, because its input is still on its way: it comes again after a quarter of its wait."""
        record.attempts -= 1
        self.delay(record, until=now + min(4.0, max(0.25, (now - record.waits_since) / 4)))
        self.counters["redelivered:reading"] += 1

    def forget_version(self, version: str) -> None:
        """Drop what is left of a version without jobs; of all versions, and the counts, if it is empty."""
        for key in [key for key in self.turns.numbers if version in ("", key[0])]:
            del self.turns.numbers[key]
        if not version:
            self.accepted, self.placing = 0, 0
            for counted in (self.ended, self.counters, self.leases):
                counted.clear()

    @property
    def ordinary(self) -> int:
        """The number of waiting jobs that an ordinary claim can take."""
        return len(self.ready) + len(self.solo)

    @property
    def leased(self) -> int:
        return sum(len(serials) for serials in self.held.values())

    def busy(self, worker: str) -> bool:
        """Whether the worker runs something that other jobs wait for; a slot that runs only shards lets ordinary jobs in
        between.
        """
        held = self.held.get(worker, set())
        return len(held) > FEW or any(not self.records[serial].shard for serial in held)

    def open_jobs(self) -> Counter[str]:
        """Jobs that have not ended, by owner."""
        return Counter(r.new.owner for r in self.records.values() if r.new.owner and not r.state.final)

    def planned_jobs(self) -> Counter[str]:
        """Jobs that wait for their start, by owner."""
        waiting = (self.records[serial] for serial in self.delayed)
        return Counter(r.new.owner for r in waiting if r.new.owner and r.not_before is not None and not r.epoch)

    def due(self, now: float) -> int:
        """Delayed jobs whose time, or deadline, has come."""
        waiting = (self.records[serial] for serial in self.delayed)
        return sum(min(record.due_at, record.deadline_at) <= now for record in waiting)

    def counted(self) -> dict[str, Any]:
        """The fields of `QueueStats` that are counts by something."""
        by_owner = {"open": dict(self.open_jobs()), "planned": dict(self.planned_jobs())}
        return {"accepted": self.accepted, "ended": dict(self.ended), "counters": dict(self.counters), **by_owner}

    def of_version(self, version: str) -> list[Record]:
        """The ordinary jobs that wait for this version, in no order."""
        return [record for serial in self.ready if (record := self.records[serial]).new.version == version]

    def line(self, version: str, owner: str, band: int) -> list[Record]:
        """The jobs of one owner in one band, in order."""
        found = [record for record in self.of_version(version) if (record.new.owner, record.band) == (owner, band)]
        return sorted(found, key=lambda record: record.place)

    def beside(self, record: Record) -> list[Record]:
        """The jobs of its owner that wait for its version, in no order."""
        return [other for other in self.of_version(record.new.version) if other.new.owner == record.new.owner]

    def shards_in_order(self, version: str) -> list[Record]:
        found = [self.records[serial] for serial in self.shards]
        return sorted((r for r in found if r.new.version == version), key=lambda r: r.place)

    def suspects(self, version: str) -> list[Record]:
        found = [self.records[serial] for serial in self.solo]
        return sorted((r for r in found if r.new.version == version), key=lambda r: (r.solo_place, r.serial))

    def waiting(self) -> Iterator[Record]:
        """Every job that is queued or delayed, in no order."""
        for serial in [*self.ready, *self.shards, *self.solo, *self.delayed]:
            yield self.records[serial]

    def position(self, record: Record) -> int | None:
        """How many jobs of its line stand before this one, or None when it does not wait in the queue."""
        if record.serial in self.shards:
            return self.shards_in_order(record.new.version).index(record)
        if record.serial in self.ready:
            return sum(other.place < record.place for other in self.beside(record))
        return None

    def ahead_of(self, record: Record) -> int:
        """How many jobs of its line would stand before it."""
        line = self.shards_in_order(record.new.version) if record.shard else self.beside(record)
        return sum((other.band, other.deadline_at) <= (record.band, record.deadline_at) for other in line)

    def enqueue(self, record: Record) -> None:
        """Put a job into its place in the queue, or among the suspects."""
        self._lift(record)
        record.state, record.band = JobState.QUEUED, served_as(record.new.priority, record.new.call).band
        if record.suspect:
            record.solo_place = self._solo_place(record)
            self.solo.add(record.serial)
        elif record.shard:
            self.shards.add(record.serial)
        else:
            self.ready.add(record.serial)
            self.take_turn(record)

    def step_over(self, record: Record) -> None:
        """Move a job that waits into the late band."""
        record.band = LATE_BAND
        self.take_turn(record)

    def take_turn(self, record: Record) -> None:
        """The line of jobs without an owner gets its turn when a claim finds owners beside it."""
        if record.new.owner:
            self.turns.take(record.new.version, record.band, record.new.owner)

    def _solo_place(self, record: Record) -> float:
        """By age; but a job that lost workers goes behind all other suspects, as the loss may not be its fault."""
        if not record.losses:
            return record.created_at
        return LOST_PLACE + self.counters[f"solo_clock:{record.new.version}"]

    def delay(self, record: Record, *, until: float) -> None:
        self._lift(record)
        record.state, record.due_at = JobState.DELAYED, until
        self.delayed.add(record.serial)

    def lease(self, record: Record, *, worker: str, nonce: str, now: float) -> None:
        self._lift(record)
        record.state, record.worker = JobState.LEASED, worker
        record.epoch += 1
        record.attempts += 1
        record.token, record.nonce = f"{record.epoch}:{worker}:{nonce}", nonce
        record.held_at = record.started_at = now
        self.held.setdefault(worker, set()).add(record.serial)

    def end(self, record: Record, state: JobState, *, now: float, error: JobError | None = None, token: str = "") -> None:
        """The one way into a final state: the job leaves its place, one count. `token` is that of the last attempt."""
        if not token:
            self.tell("finished", record, state)
        self._lift(record)
        record.final_token = token
        record.state, record.finished_at, record.error = state, now, error
        if state in INBOX:
            self.inbox.add(record.serial)
        self.ended[state.value] += 1

    def expire(self, record: Record, *, now: float) -> None:
        self.end(record, JobState.EXPIRED, now=now, error=EXPIRED)

    def cancel(self, record: Record, *, now: float, token: str = "") -> None:
        self.end(record, JobState.CANCELLED, now=now, error=CANCELLED, token=token)

    def crash(self, record: Record, *, now: float, token: str = "", detail: str = "") -> bool:
        """Charge a crash; True if that reached a limit and the job is dead."""
        record.crashes += 1
        record.note(now=now, how="crashed")
        spent = record.crashes >= record.new.max_crashes or record.charged >= record.new.max_attempts
        if spent:
            last = f"; the last time: {detail}" if detail else ""
            error = JobError("poison", f"the process running it died {record.crashes} times{last}")
            self.end(record, JobState.DEAD, now=now, error=error, token=token)
        else:
            self.enqueue(record)
            self.counters["redelivered:crashed"] += 1
        return spent

    def mark_replayed(self, old: JobId, new: JobId) -> None:
        self.inbox.discard(old.serial)
        if record := self.records.get(old.serial):
            record.replayed_as = new

    def tell(self, event: str, record: Record, state: JobState) -> None:
        """Report the change to the caller of the current step."""
        holder = (record.worker, record.nonce) if record.token else ("", "")
        self.changes.append(Change(record.new.id, event, state, record.new.version, *holder, trace=record.new.trace))

    def drop(self, record: Record) -> None:
        del self.records[record.serial]
        self.inbox.discard(record.serial)

    def collect(self, record: Record, *, now: float) -> None:
        self.bury(record, now + min(TOMBSTONE_MAX_S, max(TOMBSTONE_MIN_S, record.new.result_ttl_s)))

    def forget(self, record: Record, *, now: float) -> None:
        self.bury(record, now + TOMBSTONE_MIN_S)

    def bury(self, record: Record, until: float) -> None:
        self.drop(record)
        self.tombstones[record.serial] = (until, record.new.owner)

    def homeless(self) -> list[Record]:
        """Live jobs that are in none of the places, or in a line without a turn; there must never be one."""
        held = {serial for worker in self.leases for serial in self.held.get(worker, ())}
        placed = (self.ready - self.without_turn()) | self.shards | self.solo | self.delayed | held
        return [r for r in self.records.values() if not r.state.final and r.serial not in placed]

    def without_turn(self) -> set[str]:
        records = [self.records[serial] for serial in self.ready]
        return {r.serial for r in records if r.new.owner and not self.turns.has(r.new.version, r.band, r.new.owner)}

    def depth_by_band(self) -> dict[int, int]:
        counts = Counter(self.records[serial].band for serial in (*self.ready, *self.shards))
        return {band: counts[band] for band in BANDS}

    def oldest_age_by_band(self, now: float) -> dict[int, float]:
        """How long the job that has waited longest in each band has waited; suspects count among the first."""
        ages = dict.fromkeys(BANDS, 0.0)
        waiting = ((self.records[s].band, self.records[s]) for s in (*self.ready, *self.shards))
        for band, record in (*waiting, *self._suspects()):
            ages[band] = max(ages[band], now - record.waits_since)
        return ages

    def _suspects(self) -> Iterator[tuple[int, Record]]:
        return ((BANDS[0], self.records[serial]) for serial in self.solo)

    def _lift(self, record: Record) -> None:
        for place in (self.ready, self.shards, self.solo, self.delayed, self.held.get(record.worker, set())):
            place.discard(record.serial)
        record.token = ""


def batch_record(stamp: BatchStamp, worker: str, place: int) -> BatchRecord:
    return BatchRecord(
        id=stamp.id,
        size=stamp.size,
        reason=stamp.reason,
        preprocess_s=stamp.preprocess_s,
        inference_s=stamp.inference_s,
        postprocess_s=stamp.postprocess_s,
        worker=worker,
        batch_wait_s=stamp.batch_wait_s,
        decode_s=stamp.decode_s,
        device_wait_s=stamp.device_wait_s,
        place=place,
    )
