"""The details of penstock's answers: the `Server-Timing` of predictions and the ids of jobs."""

from __future__ import annotations

import random
import re
from array import array

from penstock.loadtest.generator.answers import AnswerReader
from penstock.loadtest.generator.connection import Connection
from penstock.loadtest.generator.load_loop import ResponseRecorder
from penstock.loadtest.generator.summary import is_good
from penstock.loadtest.workload import CallStyle

_TIMING = re.compile(rb'queue;dur=([\d.]+), batch;desc="(\d+) ([a-z_]*)", run;dur=([\d.]+)')
_JOB = re.compile(rb'"id":\s*"([A-Za-z0-9_.-]+)"')
ACCEPTED = 202


class DetailRecorder(ResponseRecorder):
    """Keeps queue wait, run time, batch size and release reason of each answer that holds them, and a sample of the job ids.

    `good` and `bad` count all answers; everything else counts only calls sent at `since` (by the load's clock) or later.
    """

    def __init__(self, caller: CallStyle, poll: tuple[bytes, bytes], *, sample: int, seed: int, since: float) -> None:
        super().__init__()
        self._caller = caller
        self._poll = poll
        self._sample = sample
        self._draw = random.Random(seed)
        self._since = since
        self._jobs_seen = 0
        self.good = 0
        self.bad = 0
        # The exact intended moment: subtracting the latency from the answer's moment might move it across a window's bound.
        self.sent_at = array("d")
        self.queue_s = array("f")
        self.run_s = array("f")
        self.sizes = array("H")
        self.reasons: list[str] = []
        self.reason_of = array("B")
        self.jobs: list[str] = []

    def follow(self, connection: Connection) -> bytes | None:
        """The request for the result: after the submit, and again until the job has ended."""
        answer = connection.reader
        if self._caller is not CallStyle.ASYNC or answer.status != ACCEPTED:
            return None
        match = _JOB.search(answer.body)
        if match is None:
            return None
        # Only the answer to a submit has this header; the answers to polls name the same job again.
        if answer.header(b"location"):
            self._sample_job(match[1], connection.sent_at)
        return self._poll[0] + match[1] + self._poll[1]

    def answer(self, connection: Connection, now: float) -> None:
        super().answer(connection, now)
        self.sent_at.append(connection.sent_at)
        if is_good(connection.reader.status):
            self.good += 1
            self._note(connection.reader, connection.sent_at)
        else:
            self.bad += 1

    def lost(self, connection: Connection, now: float) -> None:
        super().lost(connection, now)
        self.sent_at.append(connection.sent_at)
        self.bad += 1

    def _note(self, answer: AnswerReader, sent_at: float) -> None:
        if self._caller is CallStyle.SUBMIT and (match := _JOB.search(answer.body)):
            self._sample_job(match[1], sent_at)
        elif self._caller is CallStyle.SYNC:
            self._sample_job(answer.header(b"x-penstock-job"), sent_at)
        timing = _TIMING.search(answer.header(b"server-timing"))
        if timing and sent_at >= self._since:
            self._keep_timing(timing)

    def _keep_timing(self, timing: re.Match[bytes]) -> None:
        reason = timing[3].decode()
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.queue_s.append(float(timing[1]) / 1e3)
        self.run_s.append(float(timing[4]) / 1e3)
        self.sizes.append(int(timing[2]))
        self.reason_of.append(self.reasons.index(reason))

    def _sample_job(self, job: bytes, sent_at: float) -> None:
        """Reservoir sampling: every job has the same chance to be kept."""
        if not job or sent_at < self._since:
            return
        self._jobs_seen += 1
        if len(self.jobs) < self._sample:
            self.jobs.append(job.decode("ascii"))
        elif (index := self._draw.randrange(self._jobs_seen)) < self._sample:
            self.jobs[index] = job.decode("ascii")
