"""An open-loop load: each input is submitted at its moment, whatever the state of earlier ones, and retried until accepted."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from penstock import Client
from penstock.client.handles.job_handle import JobHandle
from penstock.client.retries import RetryPolicy
from penstock.client.views import JobView
from penstock.errors import PenstockError
from tests.eventually import eventually

_THREADS = 24
_AGAIN_S = 0.25
_ACCEPTED_WITHIN_S = 90.0


@dataclass(frozen=True, slots=True)
class Work:
    """One input, with the output that it must produce (`expected`)."""

    model: str
    input: Any
    content_type: str | None
    expected: Any


@dataclass(frozen=True, slots=True)
class Ended:
    work: Work
    view: JobView
    output: Any

    @property
    def right(self) -> bool:
        found = self.output["label"] if self.work.model == "digits" else self.output
        return self.view.status == "succeeded" and bool(found == self.work.expected)


class Load:
    """Submits `works` again and again, in background threads, until `results` is called.

    The load has no fixed length, because the test's actions on the stack take longer on a busy machine.
    """

    def __init__(self, client: Client, works: Sequence[Work], *, per_s: float) -> None:
        self._client = client
        self._works = works
        self._per_s = per_s
        self._pool = ThreadPoolExecutor(_THREADS)
        self._submits: list[Future[JobHandle]] = []
        self._wanted = 0
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def accepted(self) -> int:
        return sum(submit.done() and submit.exception() is None for submit in list(self._submits))

    def await_accepted(self, count: int) -> None:
        eventually(lambda: self.accepted() >= count, timeout_s=_ACCEPTED_WITHIN_S)

    def results(self, *, at_least: int, within_s: float = 180.0) -> list[Ended]:
        """Waits until `at_least` jobs are submitted, ends the load, and returns all ended jobs in the order of submission."""
        self._wanted = at_least
        self._enough.set()
        self._thread.join()
        handles = [submit.result(timeout=_ACCEPTED_WITHIN_S) for submit in self._submits]
        give_up_at = time.monotonic() + within_s
        pairs = zip(cycle(self._works), handles, strict=False)
        return list(self._pool.map(lambda pair: self._end(pair[0], pair[1], give_up_at), pairs))

    def close(self) -> None:
        self._enough.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        began = time.monotonic()
        for number, work in enumerate(cycle(self._works)):
            if self._enough.is_set() and number >= self._wanted:
                return
            time.sleep(max(0.0, began + number / self._per_s - time.monotonic()))
            self._submits.append(self._pool.submit(self._submit, work))

    def _submit(self, work: Work) -> JobHandle:
        """Retries with the same idempotency key, so that a lost answer does not lead to a second job."""
        key, give_up_at = uuid.uuid4().hex, time.monotonic() + _ACCEPTED_WITHIN_S
        while True:
            try:
                return self._client.submit(work.model, work.input, content_type=work.content_type, idempotency_key=key)
            except PenstockError:
                if time.monotonic() > give_up_at:
                    raise
            time.sleep(_AGAIN_S)

    def _end(self, work: Work, handle: JobHandle, give_up_at: float) -> Ended:
        while True:
            try:
                view = handle.wait(timeout_s=max(1.0, give_up_at - time.monotonic()))
                return Ended(work, view, handle.result() if view.status == "succeeded" else None)
            except PenstockError:
                if time.monotonic() > give_up_at:
                    raise
            time.sleep(_AGAIN_S)


@contextmanager
def load(url: str, key: str, works: Sequence[Work], *, per_s: float) -> Iterator[Load]:
    with Client(url, key, retry=RetryPolicy(max_attempts=2, max_wait_s=2.0)) as client:
        running = Load(client, works, per_s=per_s)
        running.start()
        try:
            yield running
        finally:
            running.close()


def wrong(ended: Sequence[Ended]) -> list[str]:
    """One line for each job that did not end with its expected output."""
    return [f"{end.view.id}: {end.view.status} {end.output!r} {end.view.error}" for end in ended if not end.right]
