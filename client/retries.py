"""Decides which calls are repeated, when, and how often. tenacity keeps the time and the client sleeps."""

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

# The gateway sends these refusals before any work begins, so every call may be repeated.
_REFUSED = frozenset({429, 503})


class TransportFault(GatewayUnreachable):
    """No answer came. `sent` is False if the request cannot have reached the gateway."""

    def __init__(self, message: str, *, sent: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts count from 1. If the gateway asks for a wait beyond `max_wait_s`, the call fails and the caller decides."""

    max_attempts: int = 5
    first_wait_s: float = 0.25
    max_wait_s: float = 30.0

    def allows_repeat(self, call: HttpCall, outcome: Answer | TransportFault, *, attempt: int, elapsed_s: float = 0.0) -> bool:
        """True if a repeat of `call` may help, is safe, and is still in time."""
        asked_s = retry_after_s(outcome.headers) or 0.0 if isinstance(outcome, Answer) else 0.0
        if attempt >= self.max_attempts or asked_s > self.max_wait_s:
            return False
        if call.patience_s is not None and elapsed_s + asked_s >= call.patience_s:
            return False
        if isinstance(outcome, TransportFault):
            return call.repeatable or not outcome.sent
        return _answer_allows_repeat(call, outcome)

    def wait_s(self, outcome: Answer | TransportFault, *, attempt: int, chance: float) -> float:
        """The wait that the gateway asks for plus up to a fifth, to spread the callers; else a doubling, jittered wait."""
        asked = retry_after_s(outcome.headers) if isinstance(outcome, Answer) else None
        if asked is not None:
            return asked * (1 + 0.2 * chance)
        return Backoff(self.first_wait_s, self.max_wait_s, jitter=0.5).delay_s(attempt, chance=chance)


def _answer_allows_repeat(call: HttpCall, answer: Answer) -> bool:
    advice = answer.headers.get("x-should-retry", "").lower()
    if advice in ("true", "false"):
        return advice == "true"
    if answer.status in _REFUSED:
        return True
    if answer.status == 502:
        return call.repeatable
    return answer.status == 504 and call.repeatable and "retry-after" in answer.headers


class RetryBudget:
    """Keeps retries below a tenth of the requests, so that retries cannot bury an overloaded gateway.

    A bucket of permits: each request adds `share`, each retry takes one. The bucket starts with `floor`, refills by `floor`
    per minute up to `floor`, and holds at most ten times `floor`. Safe to share between threads.
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
        # Time fills the bucket only up to the floor. Permits above it come from requests and stay.
        if self._permits < self._floor:
            self._permits = min(self._floor, self._permits + idle_s * self._floor / 60)


class Retries:
    """The policy and the budget of one client as tenacity's controllers: one per call, for threads or for asyncio."""

    def __init__(self, policy: RetryPolicy, budget: RetryBudget) -> None:
        self._policy, self._budget = policy, budget

    def blocking(self, call: HttpCall, *, sleep: Callable[[float], None] = time.sleep) -> Retrying:
        self._budget.spend_request(time.monotonic())
        return Retrying(sleep=sleep, retry=lambda state: self._may_repeat(call, state), wait=self._wait_s)

    def asynchronous(self, call: HttpCall) -> AsyncRetrying:
        self._budget.spend_request(time.monotonic())
        return AsyncRetrying(sleep=asyncio.sleep, retry=lambda state: self._may_repeat(call, state), wait=self._wait_s)

    def _may_repeat(self, call: HttpCall, state: RetryCallState) -> bool:
        outcome = _outcome(state)
        if outcome is None or not _failed(outcome):
            return False
        attempt, elapsed_s = state.attempt_number, state.seconds_since_start or 0.0
        # The budget comes last: a call that the policy does not repeat must not use a permit.
        return self._policy.allows_repeat(call, outcome, attempt=attempt, elapsed_s=elapsed_s) and self._budget.take_retry(
            time.monotonic()
        )

    def _wait_s(self, state: RetryCallState) -> float:
        outcome = _outcome(state)
        return self._policy.wait_s(outcome, attempt=state.attempt_number, chance=random.random()) if outcome else 0.0


def _failed(outcome: Answer | TransportFault) -> bool:
    return isinstance(outcome, TransportFault) or outcome.status >= 400


def _outcome(state: RetryCallState) -> Answer | TransportFault | None:
    """The result of the last attempt; None for the client's own faults, which are not retried."""
    if state.outcome is None:
        return None
    fault = state.outcome.exception()
    if fault is None:
        answer: Answer = state.outcome.result()
        return answer
    return fault if isinstance(fault, TransportFault) else None
