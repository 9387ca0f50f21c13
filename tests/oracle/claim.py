"""How the oracle gathers one batch: suspects alone, else by band and deadline, and only when it may be released."""

from __future__ import annotations

from penstock.broker.records import Claim, ClaimRequest
from penstock.job import LATE_BAND, Priority
from tests.oracle.model_queue import LOST_PLACE, QueueOracle
from tests.oracle.record import Record
from tests.oracle.turns import one_each

# Bulk jobs fill places of a batch that no interactive job takes. Behind a full interactive band they get every `BULK_TURN`th
# batch.
BULK_TURN = 8
SHORTEST_WAIT_S = 0.001
SOLO_AGAIN_S = 1.0


class Gathering:
    """One claim on one queue. `now` is the store's clock."""

    def __init__(self, queue: QueueOracle, request: ClaimRequest, now: float) -> None:
        self._queue = queue
        self._request = request
        self._now = now
        self._expired = 0
        self._stepped_over = 0
        self._shared = False

    def claim(self) -> Claim:
        self._queue.changes.clear()
        if self._request.shard:
            return self._claim_shard()
        if not self._queue.ordinary:
            return self._answer([])
        plain = sum(not record.new.owner for record in self._queue.of_version(self._request.version))
        self._shared = plain < self._queue.ordinary and self._queue.turns.any(self._request.version)
        suspect = next((r for r in self._queue.suspects(self._request.version) if self._alive(r)), None)
        if suspect is None:
            return self._claim_ready()
        if suspect.solo_place < LOST_PLACE:
            return self._release([suspect], "solo")
        claim = self._claim_beside(suspect)
        if claim.jobs:
            self._tick(others=claim.reason != "solo")
        return claim

    def _claim_shard(self) -> Claim:
        shards = self._queue.shards_in_order(self._request.version)
        shard = next((r for r in shards if self._alive(r)), None)
        return self._release([shard], "bulk") if shard else self._answer([])

    def _claim_ready(self) -> Claim:
        chosen = self._choose()
        reason = self._reason(chosen) if chosen else ""
        return self._release(chosen, reason) if reason else self._wait(chosen)

    def _claim_beside(self, suspect: Record) -> Claim:
        """A suspect that lost workers goes once ordinary jobs were served since it came, and only to a slot that can start it
        now.
        """
        free = not self._queue.busy(self._request.worker)
        served_at = self._queue.counters[f"solo_others:{self._request.version}"]
        due = not self._queue.of_version(self._request.version) or suspect.solo_place - LOST_PLACE < served_at
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
        """The next jobs: interactive, then late, then bulk; bulk first when it is due."""
        limit, bulk = self._request.limit, Priority.BULK.band
        kept = self._next(0, limit, self._slack_needed())
        if len(kept) == limit:
            return [*(self._next(bulk, limit) if self._bulk_is_due() else []), *kept][:limit]
        late = self._next(LATE_BAND, limit)
        # Never look at more jobs than one batch can hold.
        bulks = self._next(bulk, limit - len(late)) if len(late) < limit else []
        return [*kept, *late, *bulks][:limit]

    def _next(self, band: int, limit: int, need: float = 0.0) -> list[Record]:
        """The next jobs of one band; where there are owners they take turns."""
        version, turns = self._request.version, self._queue.turns
        if not self._shared:
            return self._live("", band, limit, need)
        if self._queue.line(version, "", band):
            turns.take(version, band, "")
        while True:
            owners = turns.first(version, band, limit)
            lines = {owner: self._live(owner, band, limit, need) for owner in owners}
            gone = [owner for owner in owners if not self._queue.line(version, owner, band)]
            for owner in gone:
                turns.drop(version, band, owner)
            chosen = one_each(owners, lines, limit)
            if len(chosen) == limit or not gone:
                return chosen

    def _live(self, owner: str, band: int, limit: int, need: float) -> list[Record]:
        """The next jobs of one line. Jobs past their deadline end here; jobs with less slack than `need` step over to the
        late band.
        """
        found: list[Record] = []
        for record in self._queue.line(self._request.version, owner, band):
            if len(found) == limit:
                break
            if self._alive(record) and not self._steps_over(record, need):
                found.append(record)
        return found

    def _slack_needed(self) -> float:
        """The slack that the possible batch needs, not a full one: a smaller batch runs for a shorter time."""
        missing = max(0, self._request.limit - len(self._queue.of_version(self._request.version)))
        return self._request.min_slack_s - missing * self._request.slack_per_item_s

    def _bulk_is_due(self) -> bool:
        """Whether bulk jobs go before a full band of interactive ones, once in a while."""
        if all(self._queue.records[serial].band != Priority.BULK.band for serial in self._queue.ready):
            return False
        self._queue.counters["bulk_turn"] += 1
        return self._queue.counters["bulk_turn"] % BULK_TURN == 0

    def _alive(self, record: Record) -> bool:
        alive = record.deadline_at > self._now
        if not alive:
            self._queue.expire(record, now=self._now)
            self._expired += 1
        return alive

    def _steps_over(self, record: Record, need: float) -> bool:
        late = record.deadline_at - self._now < need
        if late:
            self._queue.step_over(record)
            self._stepped_over += 1
        return late

    def _reason(self, chosen: list[Record]) -> str:
        """The reason why the batch may leave now, or "" if it should wait for more jobs."""
        enough = min(self._request.enough, self._request.limit)
        if len(chosen) >= self._request.limit:
            # A fresh model takes one job at a time. If nothing waits behind it, it filled no batch, but met an idle slot.
            return "idle" if self._request.limit == self._queue.ordinary == 1 else "full"
        if len(chosen) >= enough:
            return "full" if enough > 1 else "idle"
        if not any(self._queue.busy(worker) for worker in self._queue.held):
            return "idle"
        if self._wait_left(chosen[0]) <= 0:
            return "wait"
        return "deadline" if self._slack_left(chosen[0]) <= 0 else ""

    def _wait_left(self, first: Record) -> float:
        return self._request.max_wait_s - (self._now - first.waits_since)

    def _slack_left(self, first: Record) -> float:
        return first.deadline_at - self._now - self._request.hurry_s

    def _release(self, chosen: list[Record], reason: str) -> Claim:
        batch = self._within_bytes(chosen)
        self._queue.leases[self._request.worker] = self._now + self._request.lease_s
        for record in batch:
            if self._shared and reason not in ("solo", "bulk"):
                self._queue.turns.pass_turn(self._request.version, record.band, record.new.owner)
            self._queue.lease(record, worker=self._request.worker, nonce=self._request.nonce, now=self._now)
        return self._answer(batch, reason=reason)

    def _within_bytes(self, chosen: list[Record]) -> list[Record]:
        """The first jobs that fit the limit of inline input, at least one."""
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
            depth=self._queue.ordinary,
            retry_in_s=retry_in_s,
            now=self._now,
            stepped_over=self._stepped_over,
            expired=self._expired,
            changes=tuple(self._queue.changes),
            shards=len(self._queue.shards_in_order(self._request.version)),
        )
