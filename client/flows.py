"""The exchanges that take more than one call, written once for both clients.

A flow is a generator: it yields the next step (an `HttpCall` to make or a `Pause` to keep) and receives a `Reply`. It never
touches a socket or a clock, so that the blocking and the asyncio client follow the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from penstock.backoff import Backoff
from penstock.client import calls, protocol
from penstock.client.problems import WaitTimeout, ended_error, error_from, problem_of
from penstock.client.protocol import Answer, HttpCall
from penstock.client.views import JobView, job_view
from penstock.errors import NotFound, PenstockError

_QUICK_POLLS = Backoff(0.05, 1.0)


@dataclass(frozen=True, slots=True)
class Pause:
    """A step that only waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a step. `now` is monotonic. The answer to a pause is empty, with status 0."""

    answer: Answer
    now: float


NOTHING = Answer(0, {}, b"")

T = TypeVar("T")
Flow: TypeAlias = Generator[HttpCall | Pause, Reply, T]


@dataclass(frozen=True, slots=True)
class Result:
    """A job's output, and the job's state afterwards."""

    value: Any
    job: JobView


class Patience:
    """Decides how long to wait. It counts polls that return at once, so that no gateway can cause a busy loop."""

    def __init__(self, timeout_s: float | None, now: float) -> None:
        self._ends_at = None if timeout_s is None else now + timeout_s
        self._polled_at = now
        self._quick_polls = 0

    def left_s(self, now: float) -> float:
        """The maximum duration of the next poll."""
        left = protocol.LONGEST_POLL_S if self._ends_at is None else self._ends_at - now
        return min(protocol.LONGEST_POLL_S, max(0.0, left))

    def is_over(self, now: float) -> bool:
        return self._ends_at is not None and now >= self._ends_at

    def pause_after_poll(self, now: float) -> float:
        """The pause before the next poll: none after a poll that the gateway held, up to 1 s after several quick ones."""
        is_quick = now - self._polled_at < 0.2
        self._quick_polls = self._quick_polls + 1 if is_quick else 0
        self._polled_at = now
        # Two quick answers in a row are usual: queued to running, running to the end.
        return min(_QUICK_POLLS.delay_s(self._quick_polls - 2), self.left_s(now))

    def resume(self, now: float) -> None:
        self._polled_at = now


def wait_flow(job: JobView, *, timeout_s: float | None, now: float) -> Flow[JobView]:
    """The job at its end. Raises `WaitTimeout` when `timeout_s` passes first."""
    patience, seen = Patience(timeout_s, now), job
    # `JobHandle.result` learns that the job succeeded, but neither when nor in which batch. Only the job's record has both.
    while not seen.final or (seen is job and seen.finished_at is None):
        reply = yield calls.poll_call(seen, wait_s=patience.left_s(now))
        seen, now = protocol.job_of(reply.answer), reply.now
        if not seen.final:
            now = yield from _between_polls(patience, seen, now)
    return seen


def ended_flow(jobs: Sequence[JobView], *, timeout_s: float | None, now: float, outputs: bool = False) -> Flow[list[JobView]]:
    """The ended ones of these jobs, at least one; only the first `MANY_IDS` are read. `outputs`: with outputs that are small.

    Raises `WaitTimeout` when `timeout_s` passes first, and `NotFound` for a job that the gateway does not know.
    """
    patience = Patience(timeout_s, now)
    while True:
        ids = [job.id for job in jobs[: calls.MANY_IDS]]
        reply = yield calls.ended_call(ids, wait_s=patience.left_s(now), outputs=outputs)
        seen, now = [job_view(row) for row in protocol.rows_of(reply.answer)], reply.now
        missing = set(ids) - {job.id for job in seen}
        if missing:
            raise NotFound(f"the gateway does not know job {min(missing)}; results are kept for a limited time")
        if ended := [job for job in seen if job.final]:
            return ended
        now = yield from _between_polls(patience, seen[0], now)


def result_flow(job: JobView, *, timeout_s: float | None, now: float) -> Flow[Result]:
    """The job's output. Raises `WaitTimeout` when `timeout_s` passes first.

    Raises `JobFailed`, `JobCancelled` or `JobExpired` if the job ended without an output.
    """
    patience = Patience(timeout_s, now)
    while True:
        reply = yield calls.result_call(job, wait_s=patience.left_s(now))
        answer, now = reply.answer, reply.now
        if answer.status >= 400:
            raise (yield from _failure(job, answer))
        if answer.status == 303:
            answer = yield from _redirected(answer)
        if answer.status != 202:
            return Result(protocol.value_of(answer), replace(job, status="succeeded"))
        now = yield from _between_polls(patience, job, now)


def cancelled_flow(call: Callable[[str], HttpCall]) -> Flow[tuple[int, int]]:
    """The numbers of cancelled jobs or runs of a tag, and of those that will end. `call` cancels a page after the given id."""
    cancelled, requested, after = 0, 0, ""
    while True:
        counts = protocol.object_of((yield call(after)).answer)
        cancelled, requested = cancelled + int(counts["cancelled"]), requested + int(counts["requested"])
        after = str(counts.get("next_after") or "")
        if not after:
            return cancelled, requested


def _between_polls(patience: Patience, job: JobView, now: float) -> Flow[float]:
    if patience.is_over(now):
        raise WaitTimeout(
            f"job {job.id} has not ended yet", job=job, hint=f"the job continues; look again with `penstock jobs show {job.id}`"
        )
    if pause_s := patience.pause_after_poll(now):
        now = (yield Pause(pause_s)).now
        patience.resume(now)
    return now


def _failure(job: JobView, answer: Answer) -> Flow[PenstockError]:
    """The error behind a refused result: the end of the job or, if it has not ended, the gateway's refusal."""
    refused = error_from(answer.status, answer.headers, answer.content)
    reply = yield calls.poll_call(job)
    if reply.answer.status >= 400:
        return refused
    seen = protocol.job_of(reply.answer)
    if not seen.final or seen.status == "succeeded":
        return refused
    problem = seen.error or problem_of(protocol.object_of(replace(answer, status=200)), status=answer.status)
    return ended_error(seen, problem)


def _redirected(answer: Answer) -> Flow[Answer]:
    """A result from the blob store, fetched from the address that the gateway signed."""
    reply = yield HttpCall("GET", answer.headers.get("location", ""))
    return protocol.accepted(reply.answer)
