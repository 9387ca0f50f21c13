"""Takes events that are due from the outbox of every queue and of the runs, sends them, and settles what came of it.

Every gateway process has a deliverer. The lease under which an event is taken keeps two of them from sending it side by side,
and what a deliverer that died had taken is due again when its lease ends.
"""

# D92: docs/design/webhooks.md
from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import prefix
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.errors import StoreUnavailable
from penstock.extensions.webhooks.contract import GIVE_UP_S, AttemptEnd, DueEvent, EventOutcome, EventSettled, TakeLimits
from penstock.extensions.webhooks.gateway.attempts import NO_RECORD, ReceiverReply, Schedule
from penstock.extensions.webhooks.gateway.bodies import EventBodies, EventBody
from penstock.extensions.webhooks.gateway.posting import LookUp, Poster
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.store.outbox import AsyncOutbox
from penstock.extensions.webhooks.webhook import event_id, owner_secret, signature
from penstock.model_spec import ModelInfo

log = structlog.get_logger(__name__)

# A hint that something is due may be lost, so every outbox is asked this often.
ASK_S = 5.0
# An attempt takes half of its lease. In the rest it is settled, even if the store is away for a moment.
_LEASE_TIMES, _LEASE_BEYOND_S = 2.0, 1.0
_SETTLE_RETRY_S = 0.5
# At most this many events of one queue are taken at a time, so that others get their turn.
_TAKE = 16
# How many events one gateway process sends side by side.
SIDE_BY_SIDE = 64
# Most keys of unannounced models that are kept from hints until all outboxes are asked again.
_MOST_STRANGERS = 1_000
_STORE_AWAY = Backoff(0.1, 2.0)
CountDelivery = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TakenEvent:
    """`queue` is empty for the event of a run. `sent_at`: Unix seconds of this attempt by the store's clock, which all gateways
    share. `until`: when the lease ends, by the monotonic clock.
    """

    event: DueEvent
    outbox: AsyncOutbox
    queue: str
    sent_at: float
    until: float


class OutboxRound:
    """The outboxes by key, each with its queue. `ask_at`: when each is asked next (monotonic)."""

    def __init__(self) -> None:
        self.outboxes: dict[str, tuple[AsyncOutbox, str]] = {}
        self.ask_at: dict[str, float] = {}
        self.asked_all_at = -ASK_S
        self.changed = asyncio.Event()
        self.is_seeking = False
        self._strangers: set[str] = set()

    def add(self, key: str, outbox: AsyncOutbox, queue: str) -> None:
        if key not in self.outboxes:
            self.outboxes[key] = outbox, queue
            self.ask_at[key] = 0.0
            self.changed.set()

    def hear(self, key: str) -> None:
        """Something is due under this key. An unknown key is that of a new model, so all outboxes are looked up: once per key
        until all are asked again, so that hints of models that do not exist cost little.
        """
        if key in self.outboxes:
            self.ask_at[key] = 0.0
            self.changed.set()
        elif key not in self._strangers and len(self._strangers) < _MOST_STRANGERS:
            self._strangers.add(key)
            self.is_seeking = True
            self.changed.set()

    def ask_all_if_due(self, now: float) -> None:
        if now - self.asked_all_at >= ASK_S:
            self.asked_all_at, self.ask_at, self.is_seeking = now, dict.fromkeys(self.outboxes, 0.0), True
            self._strangers.clear()


class Deliverer:
    """`models`: those that the settings declare; the store knows the others. `share`: how many events of one owner are sent
    side by side at most: an owner whose receivers hang must not hold up those of others.
    """

    def __init__(
        self,
        webhooks: WebhooksSettings,
        *,
        store: AsyncStore,
        models: Sequence[str],
        bodies: EventBodies,
        poster: Poster,
        count: CountDelivery,
        share: int,
    ) -> None:
        self._webhooks = webhooks
        self._store = store
        self._models = models
        self._bodies = bodies
        self._poster = poster
        self._count = count
        self._schedule = Schedule(webhooks.retry_s, webhooks.circuit_s)
        self._give_up_s = min(GIVE_UP_S, sum(webhooks.retry_s))
        self._lease_s = _LEASE_TIMES * webhooks.timeout_s + _LEASE_BEYOND_S
        self._round = OutboxRound()
        self._sending: set[asyncio.Task[None]] = set()
        # How many events of each owner are being sent.
        self._owners: Counter[str] = Counter()
        self._share = share

    def hear(self, key: str) -> None:
        """This prefix has something due."""
        self._round.hear(key)

    async def run(self) -> None:
        """Deliver until cancelled."""
        away = BackoffCounter(_STORE_AWAY)
        while True:
            self._round.changed.clear()
            try:
                pause_s = await self._turn()
                away.reset()
            except StoreUnavailable:
                # The gateway itself says that its store is away.
                pause_s = away.count_failure()
                await asyncio.sleep(pause_s)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._round.changed.wait(), pause_s)

    async def drain(self, within_s: float) -> None:
        """Let what is being sent come to its end; what takes longer is sent again by another gateway, or by the next one."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=within_s)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _turn(self) -> float:
        """Ask each outbox whose time has come; returns the seconds until the next one's."""
        now, round = time.monotonic(), self._round
        round.ask_all_if_due(now)
        if round.is_seeking:
            round.is_seeking = False
            await self._find_outboxes()
        for key in [key for key, at in round.ask_at.items() if at <= now and key in round.outboxes]:
            room = SIDE_BY_SIDE - self._owners.total()
            if room <= 0:
                return ASK_S  # the next delivery that ends wakes this loop
            # A hint that comes during this call sets an earlier time.
            round.ask_at[key] = math.inf
            # All events of one call may belong to one owner, so it takes no more than an owner's share.
            again_s = await self._take(key, min(room, _TAKE, self._share))
            round.ask_at[key] = min(round.ask_at[key], time.monotonic() + again_s)
        nearest = min(round.ask_at.values(), default=now + ASK_S)
        return max(0.0, min(ASK_S, nearest - time.monotonic()))

    async def _find_outboxes(self) -> None:
        known = {name: stored.info or ModelInfo(name) for name, stored in (await self._store.models()).items()}
        infos = {name: ModelInfo(name) for name in self._models} | known
        queues = [queue for info in infos.values() for queue in queues_of_model(info)]
        self._round.add(RUNS_KEY, AsyncOutbox(self._store, RUNS_KEY), "")
        for queue in queues:
            self._round.add(prefix(queue), AsyncOutbox(self._store, prefix(queue)), queue)

    async def _take(self, key: str, most: int) -> float:
        """Begin to send what is due; returns the seconds after which more may be."""
        outbox, queue = self._round.outboxes[key]
        taken_at = time.monotonic()
        due = await outbox.take(
            TakeLimits(
                lease_s=self._lease_s,
                limit=most,
                give_up_s=self._give_up_s,
                skip_owners=tuple(owner for owner, count in self._owners.items() if count >= self._share),
            )
        )
        if due.events:
            now = await self._store.now()
            for event in due.events:
                taken = TakenEvent(event, outbox, queue, now, taken_at + self._lease_s)
                self._send(taken)
        if len(due.events) == most:
            return 0.0
        return ASK_S if due.next_in_s is None else due.next_in_s

    def _send(self, taken: TakenEvent) -> None:
        task = asyncio.create_task(self._deliver(taken))
        self._sending.add(task)
        self._owners[taken.event.owner] += 1
        task.add_done_callback(self._on_sent)

    def _on_attempted(self, owner: str, look_ups: Sequence[LookUp] = ()) -> None:
        """Make room for the next event before this one is settled, so that a store that is away holds up no other.

        A look-up that outlives its attempt keeps a thread, and so the place (D145).
        """
        if look_ups and not look_ups[0].done():
            look_ups[0].add_done_callback(lambda _: self._on_attempted(owner))
            return
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]
        self._round.changed.set()

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._round.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("delivery_failed", error=repr(error))

    async def _deliver(self, taken: TakenEvent) -> None:
        began_at, look_ups = time.monotonic(), list[LookUp]()
        try:
            reply = await self._attempt(taken, look_ups)
        except StoreUnavailable:
            return  # the record could not be read; the event is due again when its lease ends
        except Exception as error:
            # The event is settled as failed, so that an unexpected error does not repeat at once.
            log.error("attempt_failed", id=taken.event.id, error=repr(error), exc_info=True)
            reply = ReceiverReply(failure="internal")
        finally:
            self._on_attempted(taken.event.owner, look_ups)
        if reply is None:
            return
        took_s = time.monotonic() - began_at
        end = self._schedule.end_of(reply, tries=taken.event.tries, took_s=took_s, chance=random.random())
        settled = await self._settled(taken, end)
        self._count(_result(end, settled))
        self.hear(taken.outbox.key)
        if settled is EventSettled.UNDELIVERED:
            log.warning("event_undelivered", kind=taken.event.event, id=taken.event.id, answer=end.answer)

    async def _attempt(self, taken: TakenEvent, look_ups: list[LookUp]) -> ReceiverReply | None:
        """What came of it; None if this process stood still, and another one may be sending the event by now."""
        body = await (self._bodies.of_job(taken.event, taken.queue) if taken.queue else self._bodies.of_run(taken.event))
        if body is None:
            # Its record was evicted or deleted by hand, so its body cannot be built.
            return ReceiverReply(failure=NO_RECORD)
        if time.monotonic() + self._webhooks.timeout_s > taken.until:
            return None
        return await self._poster.post(taken.event.url, self._headers(taken, body), body.content, look_ups.append)

    def _headers(self, taken: TakenEvent, body: EventBody) -> dict[str, str]:
        event, timestamp = taken.event, int(taken.sent_at)
        name = event_id(event.id, event.number)
        secrets = [owner_secret(key, event.owner) for key in self._webhooks.signing_keys]
        signed = signature(secrets, event_id=name, timestamp=timestamp, body=body.content)
        ours = {"webhook-id": name, "webhook-timestamp": str(timestamp), "webhook-signature": signed}
        return {"content-type": "application/json", **body.headers, **ours}

    async def _settled(self, taken: TakenEvent, end: AttemptEnd) -> EventSettled:
        """Report to the store, with retries until the lease ends. A delivery that is never reported is made again."""
        while True:
            try:
                return await taken.outbox.settle(taken.event, end, give_up_s=self._give_up_s)
            except StoreUnavailable:
                if time.monotonic() + _SETTLE_RETRY_S > taken.until:
                    return EventSettled.STALE
                await asyncio.sleep(_SETTLE_RETRY_S)


def _result(end: AttemptEnd, settled: EventSettled) -> str:
    """The label of the counter: delivered, retried, gone, undelivered, or stale."""
    if settled is EventSettled.STALE:
        return "stale"
    if end.outcome in (EventOutcome.DELIVERED, EventOutcome.GONE):
        return end.outcome.value
    return "undelivered" if settled is EventSettled.UNDELIVERED else "retried"
