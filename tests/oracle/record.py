"""One job's record in plain memory: the fields that the store on Redis keeps in a hash."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.broker.records import ClaimedJob, Followed, KeptInput, NewJob
from penstock.job import (
    Attempt,
    BatchRecord,
    Call,
    Job,
    JobError,
    JobId,
    JobProgress,
    JobState,
    LeftOut,
    Payload,
    StreamPart,
    is_own,
    served_as,
)

# As in functions/lib.lua.
SUSPECT_LOSSES = 2
MAX_LOST_IN_A_ROW = 10
MAX_LOSSES = 25
PAST_FIRST, PAST_LAST = 3, 5


@dataclass(slots=True)
class Record:
    """What is stored of one job.

    `due_at`: when a DELAYED one may be queued again; `held_at`: when its holder took it; `in_a_row`: its losses up to the event
    `lost_in` with no event without it in between; `solo_place`: its place among the suspects, from `LOST_PLACE` on for those
    that lost workers.
    """

    new: NewJob
    created_at: float
    deadline_at: float
    band: int
    state: JobState = JobState.QUEUED
    epoch: int = 0
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    in_a_row: int = 0
    lost_in: int = 0
    solo_place: float = 0.0
    token: str = ""
    final_token: str = ""
    worker: str = ""
    due_at: float = 0.0
    held_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    cancel_requested: bool = False
    error: JobError | None = None
    batch: BatchRecord | None = None
    output: Payload | None = None
    ahead: int = 0
    past: list[Attempt] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    nonce: str = ""
    replayed_as: JobId | None = None
    dismissed: bool = False
    # The number of an attempt, and what it raised.
    traceback: tuple[int, str] = (0, "")
    progress: JobProgress | None = None
    stream: StreamPart = field(default_factory=StreamPart)

    @property
    def not_before(self) -> float | None:
        return self.created_at + self.new.delay_s if self.new.delay_s > 0.0 else None

    @property
    def waits_since(self) -> float:
        return self.not_before or self.created_at

    @property
    def kept_input(self) -> KeptInput | None:
        dropped = self.state in (JobState.SUCCEEDED, JobState.CANCELLED) and not self.new.input.blob
        return None if dropped else KeptInput(self.new.input, self.new.call)

    @property
    def own_blobs(self) -> list[str]:
        """The blobs that go with this record."""
        payloads = [self.new.input, *([self.output] if self.output else [])]
        return [payload.blob for payload in payloads if is_own(self.new.id, payload.blob)]

    @property
    def serial(self) -> str:
        return self.new.id.serial

    @property
    def place(self) -> tuple[int, float, str]:
        return (self.band, self.deadline_at, self.serial)

    @property
    def shard(self) -> bool:
        return self.new.call is Call.SHARD

    @property
    def collect_at(self) -> float:
        return (self.finished_at or 0.0) + self.new.result_ttl_s

    @property
    def charged(self) -> int:
        """Attempts that count: those whose worker was not lost."""
        return self.attempts - self.losses

    @property
    def suspect(self) -> bool:
        """To be run alone."""
        return self.crashes > 0 or self.losses >= SUSPECT_LOSSES

    def lose(self, event: int) -> bool:
        """Charge a lost worker; True if that reached a limit. `event` numbers the sweeps that found lost workers."""
        self.losses += 1
        self.in_a_row = self.in_a_row + 1 if self.lost_in == event - 1 else 1
        self.lost_in = event
        return self.in_a_row >= MAX_LOST_IN_A_ROW or self.losses >= MAX_LOSSES

    def claimed(self) -> ClaimedJob:
        return ClaimedJob(
            id=self.new.id,
            token=self.token,
            input=self.new.input,
            priority=served_as(self.new.priority, self.new.call),
            created_at=self.waits_since,
            deadline_at=self.deadline_at,
            attempts=self.attempts,
            crashes=self.crashes,
            call=self.new.call,
            trace=self.new.trace,
            owner=self.new.owner,
        )

    def note(self, *, now: float, how: str, delay_s: float = 0.0) -> None:
        """Note that the current attempt ended without ending the job; the first and the last few attempts are kept."""
        assert self.started_at is not None
        self.past.append(Attempt(self.epoch, self.worker, self.nonce, self.started_at, now, how, delay_s))
        if len(self.past) > PAST_FIRST + PAST_LAST:
            gone, sums = self.past.pop(PAST_FIRST), self.left_out
            spent_s = (gone.ended_at or gone.claimed_at) - gone.claimed_at
            self.left_out = LeftOut(sums.count + 1, sums.spent_s + spent_s, sums.delay_s + gone.delay_s)

    def shown_progress(self) -> JobProgress | None:
        shown = self.progress is not None and self.progress.attempt == self.epoch
        return self.progress if shown and self.state not in (JobState.QUEUED, JobState.DELAYED) else None

    def append_chunks(self, restarts: int, before: int, chunks: tuple[bytes, ...]) -> bool:
        """False if the stream has fewer chunks than were reported before."""
        mark = f"{self.epoch}.{restarts}"
        known = len(self.stream.chunks) if self.stream.mark == mark else 0
        if before > known:
            return False
        if chunks:
            kept = self.stream.chunks[:known]
            self.stream = StreamPart(mark, kept + chunks[known - before :])
        return True

    def followed(self, position: int | None, mark: str, seen: int, limit: int, *, with_output: bool) -> Followed:
        start = seen if mark == self.stream.mark and seen <= len(self.stream.chunks) else 0
        part = StreamPart(self.stream.mark, self.stream.chunks[start : start + limit], start)
        output = self.output if with_output or self.output is None else replace(self.output, data=b"")
        return Followed(self.job(position), part, output)

    def tries(self) -> tuple[Attempt, ...]:
        holds = self.state is JobState.LEASED or bool(self.final_token)
        if not holds or self.started_at is None or (self.past and self.past[-1].number >= self.epoch):
            return tuple(self.past)
        end = self.state.public if self.state.final else ""
        return (*self.past, Attempt(self.epoch, self.worker, self.nonce, self.started_at, self.finished_at, end))

    def job(self, position: int | None) -> Job:
        return Job(
            id=self.new.id,
            state=self.state,
            version=self.new.version,
            priority=served_as(self.new.priority, self.new.call),
            created_at=self.created_at,
            deadline_at=self.deadline_at,
            attempts=self.attempts,
            crashes=self.crashes,
            owner=self.new.owner,
            content_type=self.new.input.content_type,
            started_at=self.started_at,
            finished_at=self.finished_at,
            cancel_requested=self.cancel_requested,
            error=self.error,
            batch=self.batch,
            position=position,
            queued_behind=self.ahead,
            tries=self.tries(),
            left_out=self.left_out,
            trace=self.new.trace,
            replay_of=self.new.replay_of,
            replayed_as=self.replayed_as,
            call=self.new.call,
            not_before=self.not_before,
            progress=self.shown_progress(),
            tags=self.new.tags,
        )
