from __future__ import annotations

import threading
from collections.abc import Callable

from structlog.testing import capture_logs

from penstock.errors import StoreUnavailable
from penstock.workers.fleet.periodic_thread import PeriodicThread


def calls(thread_of: Callable[[Callable[[float], float | None]], PeriodicThread], *faults: Exception) -> int:
    """Start the thread, let the call raise each fault in turn, and count the calls until one succeeds."""
    left, passed, count = list(faults), threading.Event(), 0

    def call(_: float) -> None:
        nonlocal count
        count += 1
        if left:
            raise left.pop(0)
        passed.set()

    thread = thread_of(call)
    thread.start()
    assert passed.wait(10.0)
    thread.stop()
    return count


def test_a_store_that_is_away_is_logged_once_and_asked_again() -> None:
    with capture_logs() as lines:
        count = calls(
            lambda call: PeriodicThread("beat", 0.001, call, failure_event="beat_missed"),
            StoreUnavailable("away"),
            StoreUnavailable("away"),
        )
    assert count >= 3
    assert [(line["event"], line["error"]) for line in lines] == [("beat_missed", "away")]


def test_a_bug_does_not_end_the_thread() -> None:
    with capture_logs() as lines:
        count = calls(lambda call: PeriodicThread("beat", 0.001, call, failure_event="beat_missed"), ZeroDivisionError("bug"))
    assert count >= 2
    assert [(line["event"], line["log_level"]) for line in lines] == [("beat_missed", "error")]


def test_it_can_be_woken_long_before_its_time() -> None:
    ran = threading.Semaphore(0)
    thread = PeriodicThread("beat", 3_600.0, lambda _: ran.release(), failure_event="beat_missed")
    thread.start()
    assert ran.acquire(timeout=10.0)
    thread.wake()
    assert ran.acquire(timeout=10.0)
    thread.stop()


def test_a_call_may_ask_for_a_shorter_pause() -> None:
    ran = threading.Semaphore(0)

    def call(_: float) -> float:
        ran.release()
        return 0.001

    thread = PeriodicThread("sweeper", 3_600.0, call, failure_event="sweep_missed")
    thread.start()
    assert ran.acquire(timeout=10.0)
    assert ran.acquire(timeout=10.0)
    thread.stop()
