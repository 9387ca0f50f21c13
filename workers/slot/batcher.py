"""When a slot asks the queue for its next batch, and for how much. Pure: moments are monotonic and passed in.

A claimed batch no longer grows, so a slot claims as late as it can without letting its device wait: at once when the device is
idle, at once when a full batch is to be had, and otherwise shortly before the running batch is expected to end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock.broker.records import Claim, ClaimedJob, ClaimRequest
from penstock.job import Call
from penstock.model_spec import BatchPolicy, ModelSpec
from penstock.workers.slot.latency import Latency

# One batch runs, one is ready in the child; a third would only hide work from other slots.
AHEAD = 2
# A wake-up may be lost; then an idle slot finds the work this much later.
IDLE_POLL_S = 1.0
# Stock Celery clients push without a wake-up: once one was heard, look often for a while.
_FOREIGN_POLL_S = 0.02
_FOREIGN_RECENT_S = 30.0
_LEAD_FACTOR = 1.5
_LEAD_LEAST_S = 0.001
_SMOOTHING = 0.2
_NEVER_S = 1e9
# Jobs with less slack than this many full batches are in a hurry: claimed early, they would be late before they start.
_HURRY_BATCHES = 4
# In units of one call: a run this long makes a call in its course worth it, for else the device waits for settling and call.
_LONG_RUN = 2.0
# With shards beside, their rows fill that gap, and the call takes CPU from them.
_LONG_RUN_BESIDE_SHARDS = 8.0
# After memory ran out, so many full batches in a row must pass before a larger one is tried; doubled each time it fails again.
_GROW_AFTER = 8
_GROW_AFTER_MOST = 1_024
SOLO = "solo"
BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch record: jobs leased to one slot, on their way through its child. `fresh`: `device` was idle then. With a
    `profile_dir` its inference is recorded there.

    Moments are monotonic, but for `leased_at`: that of the claim once more, as Unix time by Redis' clock.
    """

    jobs: tuple[ClaimedJob, ...]
    reason: str
    worker: str
    nonce: str
    claimed_at: float
    given_at: float = 0.0
    fresh: bool = False
    leased_at: float = 0.0
    device: str = ""
    profile_dir: str = ""

    @property
    def size(self) -> int:
        return len(self.jobs)

    @property
    def solo(self) -> bool:
        return self.reason == SOLO

    @property
    def shard(self) -> bool:
        """Whether it is the rows of a run, which come alone."""
        return self.jobs[0].call is Call.SHARD


@dataclass(frozen=True, slots=True)
class ChildLoad:
    """What the child has: how many batches, and size and start of the one at the device. `alone`: no other may join it.

    `shards` are counted apart: they wait for nothing and hold up no batch.
    """

    batches: int = 0
    size: int = 0
    since: float = 0.0
    alone: bool = False
    shards: int = 0


IDLE = ChildLoad()


@dataclass(frozen=True, slots=True)
class Ask:
    """The part of a `ClaimRequest` that is decided here; fields as there."""

    limit: int
    enough: int = 1
    max_wait_s: float = 0.0
    hurry_s: float = 0.0
    min_slack_s: float = 0.0
    slack_per_item_s: float = 0.0

    def request(self, spec: ModelSpec, worker: str, *, nonce: str, lease_s: float) -> ClaimRequest:
        return ClaimRequest(
            model=spec.name,
            version=spec.version,
            worker=worker,
            nonce=nonce,
            limit=self.limit,
            enough=self.enough,
            max_wait_s=self.max_wait_s,
            min_slack_s=self.min_slack_s,
            slack_per_item_s=self.slack_per_item_s,
            hurry_s=self.hurry_s,
            lease_s=lease_s,
        )


class Smoothed:
    """A running mean that forgets: the latest value counts a fifth."""

    def __init__(self) -> None:
        self.value = 0.0
        self._seen = False

    def add(self, value: float) -> None:
        self.value = self.value + _SMOOTHING * (value - self.value) if self._seen else value
        self._seen = True


class Batcher:
    """One slot's view of its queue. `peers` is the number of other slots that serve the same queue."""

    def __init__(self, policy: BatchPolicy, latency: Latency) -> None:
        self._policy = policy
        self._latency = latency
        self._depth = 0
        # The store wakes only those who asked and got nothing, once there is as much as they asked for; others have to ask.
        self._asked_for = 1
        self._vain_for: int | None = None
        self._woken = False
        self._retry_at: float | None = None
        self._hurried = False
        self._asked_at = float("-inf")
        self._foreign_at = float("-inf")
        self._memory_cap = policy.max_batch_size
        self._grow_after = _GROW_AFTER
        self._passed = 0
        self._grown = False
        self.claim_s = Smoothed()
        self.feed_s = Smoothed()
        self.peers = 0

    # What happened.

    def follow(self, policy: BatchPolicy, *, fits: int | None = None) -> None:
        """From now on by this policy. What memory was found to hold stands: a new child has no more of it than the last one.

        `fits`: the largest batch that its warm-up found memory for, where that ran out.
        """
        unbound = self._memory_cap >= self._policy.max_batch_size
        self._policy = policy
        self._memory_cap = policy.max_batch_size if unbound else min(self._memory_cap, policy.max_batch_size)
        if fits is not None and fits < self._memory_cap:
            self.capped(fits)

    def heard(self) -> None:
        """A wake-up, or any other reason to believe that there is work."""
        self._woken = True
        self._vain_for = None

    def answered(self, claim: Claim, *, asked_at: float, now: float) -> None:
        self._depth = claim.depth
        self._asked_at = now
        self._woken = False
        self.claim_s.add(now - asked_at)
        if claim.foreign:
            self._foreign_at = now
        self._vain_for = None if claim.jobs or claim.foreign else self._asked_for
        if claim.jobs:
            slack_s = min(job.deadline_at for job in claim.jobs) - claim.now
            self._hurried = slack_s < _HURRY_BATCHES * (self._latency.bound(self._policy.max_batch_size) or 0.0)
        self._retry_at = None if claim.jobs or claim.retry_in_s is None else now + max(0.0, claim.retry_in_s)

    def ran(self, size: int, seconds: float, *, feed_s: float | None = None) -> None:
        """A batch of `size` took `seconds` on the device. `feed_s`: from its claim to its start, if the device was idle."""
        self._latency.observe(size, seconds)
        if self._retry_at is not None:
            # What was refused for the sake of company may leave now: with this batch ended the pool may be idle.
            self._vain_for = None
        if feed_s is not None:
            self.feed_s.add(feed_s)
        self._passed = self._passed + 1 if size >= self._memory_cap else 0
        if self._passed >= self._grow_after:
            self._passed = 0
            if self._grown:
                # It went well last time, so memory was freed: a limit met often must not keep batches small for hours after.
                self._grow_after = max(_GROW_AFTER, self._grow_after // 2)
            self._grown = True
            self._memory_cap = min(self._policy.max_batch_size, self._memory_cap + max(1, self._memory_cap // 8))

    def capped(self, size: int) -> None:
        """More than `size` items did not fit into memory."""
        self._memory_cap = max(1, size)
        self._passed = 0
        self._grown = False
        self._grow_after = min(_GROW_AFTER_MOST, self._grow_after * 2)

    # What to do.

    @property
    def limit(self) -> int:
        """The largest batch worth asking for now."""
        cap = min(self._policy.max_batch_size, self._memory_cap)
        # Twice the largest size that ran: a larger one may not fit, or take a time that no deadline was checked against.
        grown = min(cap, max(1, 2 * self._latency.largest))
        best = self._latency.worthwhile(grown)
        # The last few items of a full batch gain little and may cost its first ones their deadline.
        return self._latency.nearly_full(best) if self._hurried else best

    def ask(self, now: float, busy: ChildLoad = IDLE) -> Ask | None:
        """What to ask the queue for now, or None to wait until `ask_at` or the next event."""
        ask = self._chosen(now, busy)
        if ask is not None:
            self._asked_for = ask.enough
        return ask

    def _chosen(self, now: float, busy: ChildLoad) -> Ask | None:
        if busy.alone or busy.batches >= AHEAD:
            return None
        if busy.batches == 0:
            return self._ask_partial() if self._worth_asking(now) else None
        early = not self._hurried and self._vain_for is None and (self._woken or self._depth >= self.limit)
        if not early and now < self._fetch_at(now, busy):
            return None
        ask = self._ask_full() if early else self._ask_partial()
        rest_s = self._rest_s(now, busy)
        return replace(ask, min_slack_s=ask.min_slack_s + rest_s, hurry_s=ask.hurry_s + rest_s)

    def ask_at(self, now: float, busy: ChildLoad = IDLE) -> float:
        """The moment at which `ask` may answer otherwise without anything having happened."""
        if busy.alone or busy.batches >= AHEAD:
            return now + IDLE_POLL_S
        if busy.batches:
            return max(now, self._fetch_at(now, busy))
        poll_at = self._asked_at + self._poll_s
        return max(now, poll_at if self._retry_at is None else min(poll_at, self._retry_at))

    def _rest_s(self, now: float, busy: ChildLoad) -> float:
        """How long what is claimed now waits for the batch at the device."""
        return max(0.0, busy.since + (self._latency.expect(busy.size) or 0.0) - now)

    def _worth_asking(self, now: float) -> bool:
        waited = self._retry_at is not None and now >= self._retry_at
        return not self._registered or waited or now >= self._asked_at + self._poll_s

    @property
    def _registered(self) -> bool:
        """Whether a wake-up comes as soon as there is enough: a vain question for a full batch promises less than that."""
        return self._vain_for is not None and self._vain_for <= self._wanted

    @property
    def _wanted(self) -> int:
        return self._latency.efficient(self.limit) if self.peers else 1

    @property
    def _poll_s(self) -> float:
        return _FOREIGN_POLL_S if self._asked_at < self._foreign_at + _FOREIGN_RECENT_S else IDLE_POLL_S

    def _fetch_at(self, now: float, busy: ChildLoad) -> float:
        """When to fetch a partial batch so that it reaches the device as the running one ends.

        Just before that end it is too late for a call of its own: it goes with the settling of the running batch, in one call.
        """
        expected = self._latency.expect(busy.size)
        if expected is None:
            return now + IDLE_POLL_S if self._registered else now
        call_s = self.claim_s.value
        end = busy.since + expected
        lead = min(max(_LEAD_FACTOR * (call_s + self.feed_s.value), _LEAD_LEAST_S), expected / 2)
        start, closing, overdue = end - lead, end - call_s, end + max(call_s, _LEAD_LEAST_S)
        # With nothing known to wait, a question in the course of the run is worth it if runs are long.
        long_run = _LONG_RUN_BESIDE_SHARDS if busy.shards else _LONG_RUN
        pointless = not self._woken and not self._depth and expected < long_run * call_s
        if self._registered or pointless:
            return now + IDLE_POLL_S
        return start if start < closing and now < closing else overdue

    def _ask_full(self) -> Ask:
        limit = self.limit
        return Ask(limit=limit, enough=limit, max_wait_s=_NEVER_S, **self._slack(limit))

    def _ask_partial(self) -> Ask:
        limit = self.limit
        if not self.peers:
            # Nobody else could run these meanwhile: company is gained by claiming late, not by waiting with an idle device.
            return Ask(limit=limit, **self._slack(limit))
        hurry_s = self._latency.bound(min(limit, max(1, self._depth) + 1)) or 0.0
        margin_s = self.claim_s.value + self.feed_s.value
        return Ask(
            limit=limit,
            enough=self._wanted,
            max_wait_s=self._policy.max_wait_s,
            hurry_s=hurry_s + margin_s,
            **self._slack(limit),
        )

    def _slack(self, limit: int) -> dict[str, Any]:
        full, one = self._latency.bound(limit), self._latency.bound(1)
        if full is None or one is None:
            return {}
        per_item = max(0.0, full - one) / (limit - 1) if limit > 1 else 0.0
        return {"min_slack_s": full, "slack_per_item_s": per_item}
