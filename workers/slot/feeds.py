"""The feeds that a slot claims from: each queue of its model, with the slot's lease, subscription and offer there."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from selectors import EVENT_READ, BaseSelector

from penstock.broker.records import Claim, ClaimRequest, Message
from penstock.errors import StoreUnavailable
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batcher import Batcher
from penstock.workers.slot.context import SlotContext, WakeUpListener
from penstock.workers.slot.known_queue import KnownQueue
from penstock.workers.slot.settlement import Debts

# The slot stops this much before Redis would: the two clocks differ, and a message takes time.
_MARGIN_S = 2.0
_PAST = float("-inf")
_NEVER = float("inf")
# An answer that was published before an offer could be withdrawn arrives within this time, or not at all.
_ANSWER_ARRIVES_S = 2.0
# One shard runs and one waits in the child, so that the device need not wait for a claim.
SHARDS_AHEAD = 2
# A request for a shard that brought none is repeated after this: other slots were faster, or the next shard is not free yet.
_VAIN_PAUSE_S = 0.05
# One claim in this many goes to the queue that was asked the longest time ago: no queue starves, and all depths are known.
_LOOK_AROUND = 4


class Lease:
    """One slot's incarnations in one queue, one after the other: an incarnation ends with a lost lease, or a claim whose answer
    was lost. `numbers` gives each its own, also among those of the slot's other queues.

    No slot holds the jobs leased to an old name: no beat extends their leases and no subscription vouches for them, so a sweep
    soon takes them back.
    """

    def __init__(
        self, base: str, *, lease_s: float, listen: Callable[[str], WakeUpListener], numbers: Iterator[int] | None = None
    ) -> None:
        self._base = base
        self._lease_s = lease_s
        self._listen = listen
        self._numbers = numbers or count(1)
        self._confirmed_at = _PAST
        self._listener: WakeUpListener | None = None
        self.name = self._next_name()

    def _next_name(self) -> str:
        return f"{self._base}.{next(self._numbers)}"

    @property
    def is_listening(self) -> bool:
        return self._listener is not None

    def open(self) -> int:
        """Subscribe under the present name. The file descriptor to wait on; raises `StoreUnavailable`."""
        # D5: the subscription is the slot's presence.
        self._listener = self._listen(self.name)
        return self._listener.fileno()

    def renew(self) -> None:
        """Take a new name, and give up what is leased to the old one."""
        self.close()
        self.name = self._next_name()
        self._confirmed_at = _PAST

    def close(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            listener.close()

    def read(self) -> list[Message]:
        """The messages that arrived. Raises `StoreUnavailable` if the connection broke: then `close`, and `open` again."""
        return self._listener.read() if self._listener is not None else []

    def confirm(self, at: float) -> None:
        """A claim or beat sent at `at` (monotonic) was granted. Also called by the beat's thread."""
        self._confirmed_at = max(self._confirmed_at, at)

    def has_lapsed(self, now: float) -> bool:
        return now > self._confirmed_at + self._lease_s - min(_MARGIN_S, self._lease_s / 4)


class ShardLane:
    """The slot's view of the shards in line in one queue. Every claim there, of either lane, says how many there are."""

    def __init__(self) -> None:
        self.in_line = 0
        self._ask_at = _PAST

    def note(self, claim: Claim) -> None:
        """The answer to a request of the ordinary lane."""
        self.in_line = claim.shards

    def on_claim(self, claim: Claim, now: float) -> None:
        """The answer to a `shard_request`."""
        self.in_line = claim.shards
        self._ask_at = _PAST if claim.jobs else now + _VAIN_PAUSE_S

    def ask_at(self, *, in_child: int, peers: int) -> float:
        """When to ask, or infinity to wait for the next answer. `peers`: how many other slots serve the model."""
        # The child gets a second shard only if there is a first one for every other slot.
        enough = 1 if in_child == 0 else peers + 1
        return self._ask_at if in_child < SHARDS_AHEAD and self.in_line >= enough else _NEVER


def shard_request(spec: ModelSpec, queue: str, worker: str, *, nonce: str, lease_s: float) -> ClaimRequest:
    return ClaimRequest(queue, spec.version, worker, nonce, limit=1, lease_s=lease_s, shard=True)


class ClaimFeed:
    """One queue as one slot sees it. `debts`: what the slot owes the store.

    Used by the slot's thread only, except for `lease`.
    """

    def __init__(self, queue: str, debts: Debts, lease: Lease) -> None:
        self.queue = queue
        self._debts = debts
        self.lease = lease
        self.view = KnownQueue(queue, worker=lambda: lease.name)
        self.shards = ShardLane()
        self._listener_fd: int | None = None
        # Whether the store may have granted a claim whose answer was lost: the slot takes no more jobs under this name.
        self.is_unsure = False
        # Whether a submit may claim for this slot, and until when (monotonic) the answer to a used offer is waited for.
        self.has_offered = False
        self.awaited_until = _PAST
        # The slot was idle when it made the offer, and has work from another queue now.
        self.is_offer_stale = False
        # The slot claims nothing here; the feed is dropped once none of its jobs is held or awaited.
        self.is_leaving = False

    @property
    def is_expecting(self) -> bool:
        """Whether a submit may have handed jobs to the slot."""
        return self.has_offered or self.awaited_until > _PAST

    def is_call_due(self, *, can_claim: bool) -> bool:
        """Whether to call the store as soon as it answers, for something other than jobs and the subscription."""
        return self._debts.has_debts or self.is_withdrawal_due(can_claim=can_claim)

    def is_deaf(self, *, is_draining: bool, is_holding: Callable[[str], bool]) -> bool:
        """Whether to listen again. A slot that claims nothing more still shows by its subscription that it runs its jobs."""
        return not self.lease.is_listening and (is_holding(self.queue) or not (is_draining or self.is_leaving))

    @property
    def is_open(self) -> bool:
        """Whether the slot may claim here, if it may claim at all."""
        return not self.is_unsure and not self.is_leaving and self.lease.is_listening

    # The subscription.

    def listen(self, selector: BaseSelector) -> None:
        """Raises `StoreUnavailable`."""
        self._listener_fd = self.lease.open()
        selector.register(self._listener_fd, EVENT_READ, self)
        # A wake-up may have been missed meanwhile.
        self.view.on_wake_up()

    def stop_listening(self, selector: BaseSelector) -> None:
        if self._listener_fd is not None:
            selector.unregister(self._listener_fd)
            self._listener_fd = None
        self.lease.close()

    def renew_lease(self, selector: BaseSelector) -> None:
        """Go on under a new name; what the store leased to the old one is given up."""
        self.stop_listening(selector)
        self.lease.renew()
        self.is_unsure = self.has_offered = self.is_offer_stale = False
        self.awaited_until = _PAST

    # The offer.

    def on_claim(self, claim: Claim, *, offered: bool) -> None:
        """The store's answer to a claim of the ordinary lane."""
        self.shards.note(claim)
        self.has_offered = offered and _is_open(claim)
        self.is_offer_stale = False

    def on_handed_over(self, claim: Claim) -> None:
        """A submit made the claim that the slot had offered."""
        self.shards.note(claim)
        self.has_offered, self.awaited_until = _is_open(claim), _PAST

    def is_withdrawal_due(self, *, can_claim: bool) -> bool:
        """Whether jobs that were handed over now would wait for a child that cannot take them, while other slots could."""
        return self.has_offered and (self.is_offer_stale or not (can_claim and self.is_open))

    def end_offer(self, version: str, now: float, *, can_claim: bool) -> None:
        """Withdraw an offer that cannot be kept; if a submit has used it, its answer is on the way, and is waited for."""
        if _PAST < self.awaited_until < now:
            self.awaited_until, self.is_unsure = _PAST, True
        if not self.is_withdrawal_due(can_claim=can_claim):
            return
        self.has_offered = self.is_offer_stale = False
        try:
            if not self._debts.settlements.withdraw(self.queue, version, self.lease.name):
                self.awaited_until = now + _ANSWER_ARRIVES_S
        except StoreUnavailable:
            self.is_unsure = True
            raise


def _is_open(claim: Claim) -> bool:
    """Whether the claim's offer stands after this answer: nothing was taken, and nothing waits for a later moment."""
    return not claim.jobs and claim.retry_in_s is None


class ClaimFeeds:
    """The feeds of one slot; the first is at home. `is_holding`: whether jobs of a queue are leased to the slot.

    Used by the slot's thread only, except for `wanted` and `all`.
    """

    def __init__(
        self,
        name: str,
        home: str,
        context: SlotContext,
        selector: BaseSelector,
        *,
        debts: Debts,
        batcher: Batcher,
        is_holding: Callable[[str], bool],
    ) -> None:
        self._name = name
        self._context = context
        self._selector = selector
        self._debts = debts
        self._batcher = batcher
        self._is_holding = is_holding
        self._numbers = count(1)
        # Other threads replace it.
        self.wanted: Sequence[str] = (home,)
        self._followed: Sequence[str] = ()
        # Replaced as a whole, because the beat's thread reads it.
        self.all: tuple[ClaimFeed, ...] = ()
        self.follow_wanted()

    def follow_wanted(self) -> None:
        """Claim from the wanted queues only; the first is at home."""
        queues = self.wanted
        if queues is self._followed:
            return
        self._followed = queues
        known = {feed.queue: feed for feed in self.all}
        wanted = [known.get(queue) or self._feed(queue) for queue in queues]
        left = [feed for feed in self.all if feed.queue not in queues]
        for feed in (*wanted, *left):
            feed.is_leaving = feed in left
            feed.view.is_home = feed is wanted[0]
            feed.is_offer_stale = not feed.view.is_home
        self._use((*wanted, *left))

    def _feed(self, queue: str) -> ClaimFeed:
        lease = Lease(
            self._name,
            lease_s=self._context.lease_s,
            listen=lambda incarnation: self._context.listen(queue, incarnation),
            numbers=self._numbers,
        )
        return ClaimFeed(queue, self._debts, lease)

    def _use(self, feeds: tuple[ClaimFeed, ...]) -> None:
        self.all = feeds
        self._batcher.views = tuple(feed.view for feed in feeds)
        self._batcher.view = feeds[0].view

    def drop_left(self) -> None:
        """Forget the feeds from which the slot no longer claims, once none of their jobs is held or awaited."""
        gone = [one for one in self.all if one.is_leaving and not one.is_expecting and not self._is_holding(one.queue)]
        if gone:
            for feed in gone:
                feed.stop_listening(self._selector)
            self._use(tuple(feed for feed in self.all if feed not in gone))

    def is_name(self, incarnation: str) -> bool:
        """Whether this is the slot's present name in one of its queues."""
        return any(feed.lease.name == incarnation for feed in self.all)

    def lapsed(self, now: float) -> list[ClaimFeed]:
        """The feeds whose jobs this slot may not begin: their lease was not confirmed in time."""
        return [one for one in self.all if one.lease.has_lapsed(now) and self._is_holding(one.queue)]

    @property
    def is_unsure(self) -> bool:
        """Whether the slot holds jobs of a queue from which it must not claim until these have ended."""
        return any(one.is_unsure and self._is_holding(one.queue) for one in self.all)

    @property
    def is_expecting(self) -> bool:
        """Whether a submit may have handed jobs to this slot."""
        return any(feed.is_expecting for feed in self.all)


def in_order(feeds: Sequence[ClaimFeed], claims: int) -> Sequence[ClaimFeed]:
    """The feeds in the order to ask them: home comes first, unless another queue is known to be twice as long.

    `claims`: how many claims the slot has made.
    """
    if len(feeds) == 1:
        return feeds
    if claims % _LOOK_AROUND == 0:
        return sorted(feeds, key=lambda feed: feed.view.asked_at)
    return sorted(feeds, key=lambda feed: -feed.view.weight)


def new_nonce() -> str:
    # D4: random, and a part of each job's token.
    return secrets.token_hex(8)
