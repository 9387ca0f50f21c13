"""How the memory store gathers one batch: suspects alone, else by band and deadline, and only when it may be released."""

from __future__ import annotations

from penstock.broker.memory_queue import LOST_PLACE, MemoryQueue, Record
from penstock.broker.records import Claim, ClaimRequest
from penstock.job import LATE_BAND, Priority

# Bulk jobs ride along in places that nothing urgent takes. Behind a full interactive band they get one batch in so many.
BULK_TURN = 8
SHORTEST_WAIT_S = 0.001
SOLO_AGAIN_S = 1.0


class Gathering:
    """One claim on one model. `now` is the store's clock."""

    def __init__(self, queue: MemoryQueue, request: ClaimRequest, now: float) -> None:
        self._queue = queue
        self._request = request
        self._now = now
        self._expired = 0
        self._stepped_over = 0

    def claim(self) -> Claim:
        self._queue.told.clear()
        suspect = next((r for r in self._queue.suspects(self._request.version) if self._alive(r)), None)
        if suspect is None:
            return self._claim_ready()
        if suspect.solo_place < LOST_PLACE:
            return self._release([suspect], "solo")
        claim = self._claim_beside(suspect)
        if claim.jobs:
            self._tick(others=claim.reason != "solo")
        return claim

    def _claim_ready(self) -> Claim:
        chosen = self._choose()
        reason = self._reason(chosen) if chosen else ""
        return self._release(chosen, reason) if reason else self._wait(chosen)

    def _claim_beside(self, suspect: Record) -> Claim:
        """A suspect that lost workers goes once others were served since it came, and only to a slot that can start with it."""
        free = not self._queue.held.get(self._request.worker)
        served_at = self._queue.counters[f"solo_others:{self._request.version}"]
        due = not self._queue.in_order(self._request.version) or suspect.solo_place - LOST_PLACE < served_at
        if due and not free:
            return self._answer([], retry_in_s=SOLO_AGAIN_S)
        claim = Claim() if due else self._claim_ready()
        return self._release([suspect], "solo") if free and not claim.jobs else claim

    def _tick(self, *, others: bool) -> None:
        clock = f"solo_clock:{self._request.version}"
        self._queue.counters[clock] += 1
        if others:
            self._queue.counters[f"solo_others:{self._request.version}"] = self._queue.counters[clock]

    def _choose(self) -> list[Record]:
        """The head of the queue in the order of leaving: in time, then late, then bulk; bulk first when it is its turn."""
        limit, need = self._request.limit, self._slack_needed()
        kept: list[Record] = []
        for record in self._queue.in_order(self._request.version):
            if record.band == 0 and len(kept) < limit and self._alive(record) and not self._steps_over(record, need):
                kept.append(record)
        if len(kept) == limit:
            return [*self._bulk_turn(), *kept][:limit]
        return [*kept, *self._rest()][:limit]

    def _rest(self) -> list[Record]:
        """What may ride along behind the interactive jobs in time. No more is looked at than one batch can hold."""
        rest: list[Record] = []
        for record in self._queue.in_order(self._request.version):
            if record.band > 0 and len(rest) < self._request.limit and self._alive(record):
                rest.append(record)
        return rest

    def _slack_needed(self) -> float:
        """What the batch that can be formed needs, not a full one: fewer waiting, shorter run."""
        waiting = len(self._queue.in_order(self._request.version))
        missing = max(0, self._request.limit - waiting)
        return self._request.min_slack_s - missing * self._request.slack_per_item_s

    def _bulk_turn(self) -> list[Record]:
        """The bulk jobs that go before a full band of interactive ones, once in a while."""
        bulk = Priority.BULK.band
        if not self._queue.depth_by_band()[bulk]:
            return []
        self._queue.counters["bulk_turn"] += 1
        if self._queue.counters["bulk_turn"] % BULK_TURN:
            return []
        found = [r for r in self._queue.in_order(self._request.version) if r.band == bulk][: self._request.limit]
        return [r for r in found if r.deadline_at > self._now]

    def _alive(self, record: Record) -> bool:
        alive = record.deadline_at > self._now
        if not alive:
            self._queue.expire(record, now=self._now)
            self._expired += 1
        return alive

    def _steps_over(self, record: Record, need: float) -> bool:
        late = record.deadline_at - self._now < need
        if late:
            record.band = LATE_BAND
            self._stepped_over += 1
        return late

    def _reason(self, chosen: list[Record]) -> str:
        """Why the batch may leave now, or "" when it should wait for company."""
        enough = min(self._request.enough, self._request.limit)
        if len(chosen) >= self._request.limit:
            return "full"
        if len(chosen) >= enough:
            return "full" if enough > 1 else "idle"
        if not self._queue.leased:
            return "idle"
        if self._wait_left(chosen[0]) <= 0:
            return "wait"
        return "deadline" if self._slack_left(chosen[0]) <= 0 else ""

    def _wait_left(self, first: Record) -> float:
        return self._request.max_wait_s - (self._now - first.created_at)

    def _slack_left(self, first: Record) -> float:
        return first.deadline_at - self._now - self._request.hurry_s

    def _release(self, chosen: list[Record], reason: str) -> Claim:
        batch = self._within_bytes(chosen)
        self._queue.leases[self._request.worker] = self._now + self._request.lease_s
        for record in batch:
            self._queue.lease(record, worker=self._request.worker, nonce=self._request.nonce, now=self._now)
        return self._answer(batch, reason=reason)

    def _within_bytes(self, chosen: list[Record]) -> list[Record]:
        """As many as fit the limit of inline input, at least one."""
        total = 0
        for place, record in enumerate(chosen):
            total += len(record.new.input.data)
            if place and total > self._request.limit_bytes:
                return chosen[:place]
        return chosen

    def _wait(self, chosen: list[Record]) -> Claim:
        if not chosen:
            return self._answer([])
        first = chosen[0]
        return self._answer([], retry_in_s=max(SHORTEST_WAIT_S, min(self._wait_left(first), self._slack_left(first))))

    def _answer(self, batch: list[Record], *, reason: str = "", retry_in_s: float | None = None) -> Claim:
        return Claim(
            jobs=tuple(record.claimed() for record in batch),
            reason=reason,
            depth=self._queue.depth,
            retry_in_s=retry_in_s,
            now=self._now,
            foreign=self._queue.hand_out_foreign(self._now),
            stepped_over=self._stepped_over,
            expired=self._expired,
            changes=tuple(self._queue.told),
        )
