"""When a slot asks for its next batch or shard, and for how many jobs. Pure: moments are monotonic and passed in.

A claimed batch no longer grows. So a slot claims as late as it can without leaving its device idle: at once if the device is
idle or a full batch is waiting, and otherwise shortly before the running batch is expected to end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.broker.records import Claim, ClaimRequest
from penstock.model_spec import BatchPolicy, ModelSpec
from penstock.workers.slot.batch import IDLE, ChildLoad
from penstock.workers.slot.known_queue import KnownQueue
from penstock.workers.slot.latency import Latency, Smoothed

# One batch runs and one is ready in the child; a third would only hide work from other slots.
BATCHES_AHEAD = 2
# An idle slot whose wake-up was lost finds the work at most this much later.
IDLE_POLL_S = 1.0
# Stock Celery clients push without a wake-up: after a message of theirs, the slot polls often for a while.
_FOREIGN_POLL_S = 0.02
_FOREIGN_RECENT_S = 30.0
_LEAD_FACTOR = 1.5
_LEAD_LEAST_S = 0.001
_NEVER_S = 1e9
# Jobs with less slack than this many full batches are urgent: claimed early, they would be late before they start.
_URGENT_BATCHES = 4
# An idle slot offers to take what comes next if its last batches held fewer jobs than this, on average.
_FEW = 1.5
# In units of one claim call: during a run this long a claim is worth its cost, because without it the device would wait for
# settling and claiming.
_LONG_RUN = 2.0
# Rows of shards keep the device busy in that gap, and the claim takes CPU time from them.
_LONG_RUN_BESIDE_SHARDS = 8.0
# After memory ran out, this many full batches in a row must pass before a larger one is tried; each further failure doubles it.
_GROW_AFTER = 8
_GROW_AFTER_MOST = 1_024


# A batch of several calls takes one of this many parts of the slot's share of the queue, and at most this many jobs.
_PARTS_OF_SHARE = 2
_MOST_JOBS = 256
# Reasons for which a batch leaves.
FULL = "full"
EFFICIENCY = "efficiency"


class Batcher:
    """One slot's view of its queues. `peers` is the number of other slots that serve the same ones.

    `view` is the queue that is asked for jobs next, or has answered; `views` are all of them. Requests are for leases of
    `lease_s`; `new_nonce` is called once for each.
    """

    def __init__(
        self,
        spec: ModelSpec,
        latency: Latency,
        *,
        view: KnownQueue | None = None,
        new_nonce: Callable[[], str] = str,
        lease_s: float = 15.0,
    ) -> None:
        self._spec = spec
        self._policy = spec.policy
        self._latency = latency
        self.view = view or KnownQueue(spec.name)
        self.views: Sequence[KnownQueue] = (self.view,)
        self._new_nonce = new_nonce
        self._lease_s = lease_s
        self._urgent = False
        self._memory_cap = self._policy.max_batch_size
        self._grow_after = _GROW_AFTER
        self._passed = 0
        self._grown = False
        self._wish = 0
        self.claim_s = Smoothed()
        self._claimed = Smoothed()
        self.feed_s = Smoothed()
        self.peers = 0

    # What happened.

    def follow(self, policy: BatchPolicy, *, fits: int | None = None) -> None:
        """Use this policy from now on. The cap that memory set stays: a new child has no more memory than the last one had.

        `fits`: if memory ran out in the child's warm-up, the largest batch that fitted.
        """
        is_uncapped = self._memory_cap >= self._policy.max_batch_size
        self._policy = policy
        self._memory_cap = policy.max_batch_size if is_uncapped else min(self._memory_cap, policy.max_batch_size)
        if fits is not None and fits < self._memory_cap:
            self.cap(fits)

    def on_claim(self, claim: Claim, *, asked_at: float, now: float) -> None:
        """The store's answer to a request of `next_request`."""
        self.claim_s.add(now - asked_at)
        self.on_handed_over(claim, now)

    def on_handed_over(self, claim: Claim, now: float) -> None:
        """The store's answer to a request of this slot, made by the slot itself or by a submit."""
        self.view.on_answer(claim, now)
        if claim.jobs:
            self._claimed.add(len(claim.jobs))
            slack_s = min(job.deadline_at for job in claim.jobs) - claim.now
            self._urgent = slack_s < _URGENT_BATCHES * (self._latency.bound(self._policy.max_batch_size) or 0.0)

    def on_ran(self, size: int, seconds: float, *, feed_s: float | None = None, wish: int = 0) -> None:
        """A batch of `size` took `seconds` on the device. `feed_s`: from its claim to its start, if the device was idle.

        `wish`: how many items the child would like to have at once, 0: as many as one call may have.
        """
        self._latency.observe(size, seconds)
        self._wish = wish
        for view in self.views:
            if view.retry_at is not None:
                # Jobs that were refused in order to gather more may leave now: with this batch ended, the pool may be idle.
                view.vain_for = None
        if feed_s is not None:
            self.feed_s.add(feed_s)
        self._passed = self._passed + 1 if size >= self._memory_cap else 0
        if self._passed >= self._grow_after:
            self._passed = 0
            if self._grown:
                # The last growth went well, so memory was freed: earlier failures must not keep batches small for hours.
                self._grow_after = max(_GROW_AFTER, self._grow_after // 2)
            self._grown = True
            self._memory_cap = min(self._policy.max_batch_size, self._memory_cap + max(1, self._memory_cap // 8))

    def cap(self, size: int) -> None:
        """More than `size` items did not fit into memory: keep batches to that size for a while."""
        self._memory_cap = max(1, size)
        self._passed = 0
        self._grown = False
        self._grow_after = min(_GROW_AFTER_MOST, self._grow_after * 2)

    # What to do.

    @property
    def limit(self) -> int:
        """The largest batch worth asking for now."""
        cap = min(self._policy.max_batch_size, self._memory_cap)
        grown = min(cap, self._grown_to)
        best = self._as_wished(grown, cap)
        # The last few items of a full batch gain little and may cost the first ones their deadline.
        return self._latency.nearly_full(best) if self._urgent else best

    @property
    def _grown_to(self) -> int:
        """Twice the largest size that ran: a larger one may not fit, or take a time that no deadline was checked against."""
        return max(1, 2 * self._latency.largest)

    @property
    def _is_about_to_grow(self) -> bool:
        """Whether the next batch may be larger once the running one has ended, and there are jobs for it (D8)."""
        cap = min(self._policy.max_batch_size, self._memory_cap)
        return self._grown_to < cap and self.view.depth >= self._grown_to and self.limit == self._grown_to

    def _as_wished(self, grown: int, cap: int) -> int:
        """D65: fewer than one call may have where that is cheaper; more where the child can then choose items that are alike.

        More only of a queue that is long: half of this slot's share of it, so that the next batch has a choice too.
        """
        if 0 < self._wish <= cap or cap < self._policy.max_batch_size:
            return min(grown, self._wish or grown)
        share = self.view.depth // (_PARTS_OF_SHARE * (self.peers + 1))
        return max(grown, min(self._wish, share, _MOST_JOBS)) if grown == cap else grown

    @property
    def is_urgent(self) -> bool:
        """Whether the jobs claimed last have little slack."""
        return self._urgent

    def reason(self, claim: Claim) -> str:
        """Why the batch left: a full batch that is smaller than it might be was full by `efficiency`."""
        is_smaller = len(claim.jobs) == self._wish < self._policy.max_batch_size
        return EFFICIENCY if claim.reason == FULL and is_smaller else claim.reason

    def next_request(self, now: float, load: ChildLoad = IDLE) -> ClaimRequest | None:
        """What to ask the queue for now, or None: then wait until `ask_at` or the next event."""
        request = self._chosen(now, load)
        if request is not None:
            self.view.asked_for = request.enough
        return request

    def _chosen(self, now: float, load: ChildLoad) -> ClaimRequest | None:
        if load.room is not None:
            return self._for_room(load.room) if self._has_room(load) and self._is_worth_asking(now) else None
        if load.alone or load.batches >= BATCHES_AHEAD:
            return None
        if load.batches == 0:
            return replace(self._partial_batch(0.0), offer=self._is_lone) if self._is_worth_asking(now) else None
        if self._is_about_to_grow:
            return None
        # D8: while a batch runs, only a full one is claimed early; a partial one keeps growing in the queue.
        is_full_likely = not self._urgent and self.view.vain_for is None and (self.view.woken or self.view.depth >= self.limit)
        if not is_full_likely and now < self._fetch_at(now, load):
            return None
        rest_s = self._rest_s(now, load)
        return self._full_batch(rest_s) if is_full_likely else self._partial_batch(rest_s)

    def ask_at(self, now: float, load: ChildLoad = IDLE) -> float:
        """When `next_request` may answer differently without another event."""
        if load.room is not None:
            return self._room_at(now, load)
        if load.alone or load.batches >= BATCHES_AHEAD:
            return now + IDLE_POLL_S
        if load.batches:
            return now + IDLE_POLL_S if self._is_about_to_grow else max(now, self._fetch_at(now, load))
        return self._idle_at(now)

    def _idle_at(self, now: float) -> float:
        """At once if this queue may have jobs: the turn before may have asked another queue."""
        return now if self._is_worth_asking(now) else self._poll_at(now)

    def _poll_at(self, now: float) -> float:
        poll_at = self.view.asked_at + self._poll_s
        return max(now, poll_at if self.view.retry_at is None else min(poll_at, self.view.retry_at))

    def _room_at(self, now: float, load: ChildLoad) -> float:
        if not self._has_room(load):
            return now + IDLE_POLL_S
        return self._idle_at(now)

    @staticmethod
    def _has_room(load: ChildLoad) -> bool:
        return bool(load.room) and not load.alone

    def _for_room(self, room: int) -> ClaimRequest:
        """D87: take what waits, because each item begins at once and ends alone. Waiting for a larger batch gains nothing."""
        request = self._request(min(self._policy.max_batch_size, room), 0.0)
        one_s = self._latency.bound(1) or 0.0
        return replace(request, min_slack_s=one_s, slack_per_item_s=0.0, offer=self._is_lone)

    def _rest_s(self, now: float, load: ChildLoad) -> float:
        """How long a batch claimed now waits for the one at the device."""
        return max(0.0, load.since + (self._latency.expect(load.size) or 0.0) - now)

    def _is_worth_asking(self, now: float) -> bool:
        has_waited = self.view.retry_at is not None and now >= self.view.retry_at
        return not self._is_registered or has_waited or now >= self.view.asked_at + self._poll_s

    @property
    def _is_lone(self) -> bool:
        """Whether jobs come one by one, at home. Of several that come together, the first would be handed over, and leave the
        others to a batch of their own.
        """
        return self.view.is_home and self._claimed.value < _FEW

    @property
    def _is_registered(self) -> bool:
        """Whether the store will wake this slot as soon as there is enough; a vain request for a full batch promises less."""
        return self.view.vain_for is not None and self.view.vain_for <= self._wanted

    @property
    def _wanted(self) -> int:
        return self._latency.efficient(self.limit) if self.peers else 1

    @property
    def _poll_s(self) -> float:
        return _FOREIGN_POLL_S if self.view.asked_at < self.view.foreign_at + _FOREIGN_RECENT_S else IDLE_POLL_S

    def _fetch_at(self, now: float, load: ChildLoad) -> float:
        """When to fetch a partial batch so that it reaches the device as the running one ends.

        Just before that end it is too late for a call of its own: the claim goes with the settling of the running batch.
        """
        expected = self._latency.expect(load.size)
        if expected is None:
            return now + IDLE_POLL_S if self._is_registered else now
        call_s = self.claim_s.value
        end = load.since + expected
        lead = min(max(_LEAD_FACTOR * (call_s + self.feed_s.value), _LEAD_LEAST_S), expected / 2)
        start, closing, overdue = end - lead, end - call_s, end + max(call_s, _LEAD_LEAST_S)
        # If no job is known to wait, asking during the run is worth its cost only if runs are long.
        long_run = _LONG_RUN_BESIDE_SHARDS if load.shards else _LONG_RUN
        is_pointless = not self.view.woken and not self.view.depth and expected < long_run * call_s
        if self._is_registered or is_pointless:
            return now + IDLE_POLL_S
        return start if start < closing and now < closing else overdue

    def _full_batch(self, rest_s: float) -> ClaimRequest:
        limit = self.limit
        return self._request(limit, rest_s, enough=limit, max_wait_s=_NEVER_S)

    def _partial_batch(self, rest_s: float) -> ClaimRequest:
        limit = self.limit
        if not self.peers:
            # No other slot could run these jobs meanwhile: batches grow by claiming late, not while the device idles.
            return self._request(limit, rest_s)
        hurry_s = self._latency.bound(min(limit, max(1, self.view.depth) + 1)) or 0.0
        margin_s = self.claim_s.value + self.feed_s.value
        return self._request(limit, rest_s, enough=self._wanted, max_wait_s=self._policy.max_wait_s, hurry_s=hurry_s + margin_s)

    def _request(
        self, limit: int, rest_s: float, *, enough: int = 1, max_wait_s: float = 0.0, hurry_s: float = 0.0
    ) -> ClaimRequest:
        """`rest_s`: how long the batch will wait in the child; its jobs need that much more slack."""
        full_s, item_s = self._run_times(limit)
        return ClaimRequest(
            queue=self.view.queue,
            version=self._spec.version,
            worker=self.view.worker(),
            nonce=self._new_nonce(),
            limit=limit,
            enough=enough,
            max_wait_s=max_wait_s,
            min_slack_s=full_s + rest_s,
            slack_per_item_s=item_s,
            hurry_s=hurry_s + rest_s,
            lease_s=self._lease_s,
        )

    def _run_times(self, limit: int) -> tuple[float, float]:
        """How long a batch of `limit` takes at most, and what each item adds; zeros before the first run."""
        full_s, one_s = self._latency.bound(limit), self._latency.bound(1)
        if full_s is None or one_s is None:
            return 0.0, 0.0
        return full_s, max(0.0, full_s - one_s) / (limit - 1) if limit > 1 else 0.0
