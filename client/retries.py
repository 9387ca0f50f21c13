"""Which calls are sent again, when, and how many in all: decided here, timed by tenacity, slept by the client."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, Retrying

from penstock.backoff import Backoff
from penstock.client.problems import GatewayUnreachable, retry_after_s
from penstock.client.protocol import Answer, HttpCall

# Refused before any work began, so that the same call may be sent again whatever it is.
_REFUSED = frozenset({429, 503})


class TransportFault(GatewayUnreachable):
    """No answer. `sent` is False when the request cannot have reached the gateway."""

    def __init__(self, message: str, *, sent: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts count from 1. A gateway that asks for more patience than `max_wait_s` is not asked again: the caller decides."""

    max_attempts: int = 5
    first_wait_s: float = 0.25
    max_wait_s: float = 30.0

    def worth_it(self, call: HttpCall, outcome: Answer | TransportFault, *, attempt: int, elapsed_s: float = 0.0) -> bool:
        """True if sending `call` again may help, cannot do harm, and still comes in time."""
        asked_s = retry_after_s(outcome.headers) or 0.0 if isinstance(outcome, Answer) else 0.0
        if attempt >= self.max_attempts or asked_s > self.max_wait_s:
            return False
        if call.patience_s is not None and elapsed_s + asked_s >= call.patience_s:
            return False
        if isinstance(outcome, TransportFault):
            return call.repeatable or not outcome.sent
        return _answer_invites(call, outcome)

    def wait_s(self, outcome: Answer | TransportFault, *, attempt: int, chance: float) -> float:
        """What the gateway asks for and up to a fifth more, so that callers return apart; else a doubling, jittered wait."""
        asked = retry_after_s(outcome.headers) if isinstance(outcome, Answer) else None
        if asked is not None:
            return asked * (1 + 0.2 * chance)
        return Backoff(self.first_wait_s, self.max_wait_s, jitter=0.5).delay_s(attempt, chance=chance)


def _answer_invites(call: HttpCall, answer: Answer) -> bool:
    word = answer.headers.get("x-should-retry", "").lower()
    if word in ("true", "false"):
        return word == "true"
    if answer.status in _REFUSED:
        return True
    if answer.status == 502:
        return call.repeatable
    return answer.status == 504 and call.repeatable and "retry-after" in answer.headers


class RetryBudget:
    """Retries stay below a tenth of the requests, above a floor: an overloaded gateway is not buried by those who wait for it.

    A bucket of permits: each request adds `share`, each retry takes one; it starts full with `floor`, refills by `floor` a
    minute and holds at most ten times that. Safe to share between threads.
    """

    def __init__(self, *, share: float = 0.1, floor: int = 10) -> None:
        self._share, self._floor = share, float(floor)
        self._permits = float(floor)
        self._seen_at: float | None = None
        self._lock = threading.Lock()

    def spend_request(self, now: float) -> None:
        with self._lock:
            self._refill(now)
            self._permits = min(self._permits + self._share, self._floor * 10)

    def take_retry(self, now: float) -> bool:
        with self._lock:
            self._refill(now)
            if self._permits < 1:
                return False
            self._permits -= 1
            return True

    def _refill(self, now: float) -> None:
        idle_s = now - self._seen_at if self._seen_at is not None else 0.0
        self._seen_at = now
        # Time alone fills up to the floor only; what requests earned above it stays.
        if self._permits < self._floor:
            self._permits = min(self._floor, self._permits + idle_s * self._floor / 60)


class Retries:
    """The policy and the budget of one client, in tenacity's terms: one controller per call, for threads or for asyncio."""

    def __init__(self, policy: RetryPolicy, budget: RetryBudget) -> None:
        self._policy, self._budget = policy, budget

    def blocking(self, call: HttpCall, *, sleep: Callable[[float], None] = time.sleep) -> Retrying:
        self._budget.spend_request(time.monotonic())
        return Retrying(sleep=sleep, retry=lambda state: self._again(call, state), wait=self._pause)

    def asynchronous(self, call: HttpCall) -> AsyncRetrying:
        self._budget.spend_request(time.monotonic())
        return AsyncRetrying(sleep=asyncio.sleep, retry=lambda state: self._again(call, state), wait=self._pause)

    def _again(self, call: HttpCall, state: RetryCallState) -> bool:
        outcome = _outcome(state)
        if outcome is None or not _failed(outcome):
            return False
        attempt, elapsed_s = state.attempt_number, state.seconds_since_start or 0.0
        # The budget last: a call that is not repeated anyway must not use up a permit.
        return self._policy.worth_it(call, outcome, attempt=attempt, elapsed_s=elapsed_s) and self._budget.take_retry(
            time.monotonic()
        )

    def _pause(self, state: RetryCallState) -> float:
        outcome = _outcome(state)
        return self._policy.wait_s(outcome, attempt=state.attempt_number, chance=random.random()) if outcome else 0.0


def _failed(outcome: Answer | TransportFault) -> bool:
    return isinstance(outcome, TransportFault) or outcome.status >= 400


def _outcome(state: RetryCallState) -> Answer | TransportFault | None:
    """What the last attempt came to; None for faults of the client itself, which are not retried."""
    if state.outcome is None:
        return None
    fault = state.outcome.exception()
    if fault is None:
        answer: Answer = state.outcome.result()
        return answer
    return fault if isinstance(fault, TransportFault) else None
