"""A source and a sink in memory, and a queue that runs shards in this process: the parts of the driver's tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from penstock.broker.blobs.files import BlobsUnavailable
from penstock.broker.records import NewJob, Push, SubmitStatus, Submitted
from penstock.errors import Gone, StoreUnavailable
from penstock.job import BatchRecord, Job, JobError, JobId, JobState, Payload
from penstock.run import RunCounts
from penstock.runs.driver import StopReason
from penstock.runs.model_lookup import Slots
from penstock.runs.progress import RunProgress
from penstock.runs.rows import ResultBatch, RowBatch, RowError
from penstock.shard import SHARD_MEDIA, ShardOutcome, _encoder, decode_shard


class ListSource:
    """A source of rows from a list; an element that is a `RowError` stands for a row that could not be read."""

    media = "application/json"

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.most_rows = 0

    def identity(self) -> dict[str, Any]:
        return {"rows": len(self.rows)}

    def count(self) -> int | None:
        return len(self.rows)

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        first = after["row"] if after else 0
        part = list(self.rows[first : first + rows])
        if not part:
            return None
        self.most_rows = max(self.most_rows, len(part))
        bad = {place: row for place, row in enumerate(part) if isinstance(row, RowError)}
        inputs = [None if place in bad else row for place, row in enumerate(part)]
        carried = {"row": list(range(first, first + len(part)))}
        return RowBatch(first, inputs, carried, {"row": first + len(part)}, bad)

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        return None

    def close(self) -> None: ...


class ListSink:
    """A sink of one (row, output or code) per row; a mark is the number of rows so far."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, Any]] = []
        self.commits = 0

    def append(self, results: ResultBatch) -> None:
        for place, output in enumerate(results.outputs):
            row = results.first + place
            assert results.carried["row"][place] == row
            self.lines.append((row, results.failed[place].code if place in results.failed else output))

    def commit(self) -> dict[str, Any]:
        self.commits += 1
        return {"lines": len(self.lines)}

    def restore(self, mark: dict[str, Any] | None) -> None:
        del self.lines[mark["lines"] if mark else 0 :]

    def publish(self) -> dict[str, Any]:
        return {"rows": len(self.lines)}

    def discard(self) -> None: ...

    def close(self) -> None: ...


class DictBlobs:
    """Blobs in memory. `away`: the share of the driver's calls that are not answered."""

    def __init__(self, *, away: float = 0.0, seed: int = 1) -> None:
        self.blobs: dict[str, bytes] = {}
        self._away, self._random = away, Random(seed)

    def put_all(self, blobs: Sequence[tuple[str, bytes]]) -> list[None]:
        self._answer()
        self.blobs.update(blobs)
        return [None] * len(blobs)

    def get(self, name: str) -> bytes:
        self._answer()
        return self.read(name)

    def _answer(self) -> None:
        if self._random.random() < self._away:
            raise BlobsUnavailable("the blobs are away")

    def read(self, name: str) -> bytes:
        """Return a blob as a worker reads it, without losses."""
        try:
            return self.blobs[name]
        except KeyError:
            raise Gone(f"blob {name} is gone") from None

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.blobs.pop(name, None)


Model = Callable[[list[Any]], ShardOutcome]


class ModelDied(Exception):
    """The process that ran the shard has ended."""


@dataclass
class FakeQueue:
    """A queue, its worker and its channel of pushes in one. Shards end in an order that `random` chooses.

    `keeps`: how many of the youngest shards stay waiting. `leased`: how many of the oldest ones a worker runs. `lose` and
    `away`: the shares of pushes and of replies that are lost.
    """

    model: Model
    blobs: DictBlobs
    random: Random = field(default_factory=lambda: Random(1))
    most_open: int = 100
    keeps: int = 0
    lose: float = 0.0
    away: float = 0.0
    leased: int = 0
    channel: str = "ps:gateway:test"
    jobs: dict[JobId, NewJob] = field(default_factory=dict)
    records: dict[JobId, tuple[Job, Payload | None]] = field(default_factory=dict)
    cancelled: list[JobId] = field(default_factory=list)
    most_rows: int = 0
    pushes: deque[Push] = field(default_factory=deque)

    def first_of(self, model: str) -> int:
        return 0

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 10_000) -> list[Submitted]:
        answers = []
        for job in jobs:
            known = job.id in self.jobs or job.id in self.records
            full = len(self.jobs) >= self.most_open
            status = SubmitStatus.EXISTING if known else SubmitStatus.FULL if full else SubmitStatus.CREATED
            if status is SubmitStatus.CREATED:
                self.jobs[job.id] = job
            answers.append(Submitted(status, job.id, len(self.jobs)))
        self.most_rows = max(self.most_rows, sum(len(self._rows(job)) for job in self.jobs.values()))
        if self.random.random() < self.away:
            raise StoreUnavailable("the reply was lost")
        return answers

    def _rows(self, job: NewJob) -> list[Any]:
        data = self.blobs.read(job.input.blob) if job.input.blob else job.input.data
        return decode_shard(data).rows

    def cancel(self, job: JobId) -> None:
        self.jobs.pop(job, None)
        self.cancelled.append(job)

    def forget(self, jobs: Sequence[JobId]) -> int:
        if self.random.random() < self.away:
            raise StoreUnavailable("away")
        return sum(self.records.pop(job, None) is not None for job in jobs)

    def listen(self) -> None: ...

    def receive(self, timeout_s: float) -> list[Push]:
        # Never the oldest are kept: a driver writes rows in order, so it would wait for them without end.
        if may_end := list(self.jobs)[: max(0, len(self.jobs) - self.keeps)]:
            self._run(self.random.choice(may_end))
        received = [push for push in self.pushes if self.random.random() >= self.lose]
        self.pushes.clear()
        return received

    def recheck_due(self) -> bool:
        return not self.jobs or self.random.random() < 0.1

    def results(self, jobs: Sequence[JobId]) -> list[tuple[Job, Payload | None] | None]:
        if self.random.random() < self.away:
            raise StoreUnavailable("away")
        return [self.records.get(job) or self._waiting(job) for job in jobs]

    def _waiting(self, job: JobId) -> tuple[Job, None] | None:
        if job not in self.jobs:
            return None
        is_leased = job in list(self.jobs)[: self.leased]
        return self._job(job, JobState.LEASED if is_leased else JobState.QUEUED), None

    def _job(self, job: JobId, state: JobState) -> Job:
        return Job(job, state, "1", self.jobs[job].priority, 0.0, 0.0)

    def _run(self, job: JobId) -> None:
        record = self._job(job, JobState.SUCCEEDED)
        batch = BatchRecord("b", 1, "idle", inference_s=0.01)
        try:
            output = Payload(SHARD_MEDIA, blob=self._kept(job, self.model(self._rows(self.jobs[job]))))
            self.records[job] = (record, output)
            self.pushes.append(Push(job, JobState.SUCCEEDED, output, batch=batch))
        except ModelDied as death:
            self.records[job] = (replace(record, state=JobState.DEAD, error=JobError("poison", str(death))), None)
            self.pushes.append(Push(job, JobState.DEAD, None, "poison", str(death)))
        new = self.jobs.pop(job)
        if new.input.blob:
            self.blobs.delete_all([new.input.blob])

    def _kept(self, job: JobId, outcome: ShardOutcome) -> str:
        name = f"{job.serial}.x.out"
        self.blobs.blobs[name] = _encoder.encode(outcome)
        return name


class FakeWatch:
    """A watch with a reason to stop once `stop_at` rows have a result. `lapses` says at which looks the lease has lapsed."""

    def __init__(self, *, stop_at: int | None = None, reason: StopReason = StopReason.INTERRUPT, slots: int = 1) -> None:
        self.stop_at, self.reason, self.serving = stop_at, reason, slots
        self.seen: list[RunProgress] = []
        self.lapses: range = range(0)
        self.looks = 0

    def counts_of_run(self, own: RunCounts) -> RunCounts:
        return own

    def is_hurried(self) -> bool:
        return self.stop_reason() is StopReason.LOST

    def is_held(self) -> bool:
        self.looks += 1
        return self.looks not in self.lapses

    def stop_reason(self) -> StopReason:
        rows = self.seen[-1].counts.done + self.seen[-1].counts.failed if self.seen else 0
        return self.reason if self.stop_at is not None and rows >= self.stop_at else StopReason.GO_ON

    def slots(self) -> Slots:
        return Slots(self.serving)

    def on_progress(self, progress: RunProgress) -> None:
        self.seen.append(progress)
