"""Keys and rates over all gateways: reports this process's requests to the store, and learns those of the others."""

# D113: docs/design/gateway.md
from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from penstock.broker.store import registry
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import KeyLevels, KeySpending, StoredKey
from penstock.errors import StoreUnavailable
from penstock.gateway.auth.keys import KeyAuth
from penstock.gateway.auth.rate_limit import Spending

log = structlog.get_logger(__name__)

BEAT_S = 0.5
# The interval while a rate refuses requests.
HURRY_S = 0.05
# After this silence a process no longer counts as a gateway.
GONE_S = 3.0
# Without the store: how long each process spends as before, and how long the store's keys stay valid.
CUT_OFF_S = 2.0
TRUSTED_S = 60.0
# Every gateway applies a change of a key within this time: a beat, and the store's time to answer.
KNOWN_WITHIN_S = 2.0
# The most entries in one call of the store.
AT_ONCE = 256


class KeyBeat:
    """One gateway process. Calls those in `on_revoked` with the keys that lost access."""

    def __init__(self, store: AsyncStore, auth: KeyAuth, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._auth = auth
        self._clock = clock
        self._gateway = store.channel
        self._gateways = 1
        self._edition: int | None = None
        self._heard_at = -math.inf
        self._hurry = asyncio.Event()
        self._beats = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.stored: dict[str, StoredKey] = {}
        self.on_revoked: list[Callable[[set[str]], None]] = []

    @property
    def is_needed(self) -> bool:
        """False for a gateway without keys and without a rate limit."""
        return self._auth.keyed or bool(self._auth.buckets())

    async def start(self) -> None:
        """Knows the keys when this returns, unless the store cannot be reached; then it keeps trying."""
        if not self.is_needed:
            return
        self._heard_at = self._clock()
        self._auth.trust_for(0.0)
        self._auth.on_limited = self._hurry.set
        await self._beat_or_wait()
        self._task = asyncio.create_task(self._beat_for_ever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def beat(self) -> None:
        """Raises `StoreUnavailable`; the next beat then reports this one's requests."""
        async with self._beats:
            used = [name for name, bucket in self._auth.buckets().items() if bucket.is_used]
            groups = [used[at : at + AT_ONCE] for at in range(0, len(used), AT_ONCE)] or [[]]
            for group in groups:
                levels = await self._exchange(group)
            self._auth.take_time(levels.now)
            await self._follow(levels.edition)
            self._gateways = max(1, levels.gateways)
            self._heard_at = self._clock()
            self._auth.trust_for(TRUSTED_S)

    async def _exchange(self, names: list[str]) -> KeyLevels:
        buckets = self._auth.buckets()
        reports = {name: buckets[name].report() for name in names if name in buckets}
        try:
            levels = await self._store.run(registry.spend(self._gateway, self._spendings(reports), ttl_s=GONE_S))
        except StoreUnavailable:
            for name, report in reports.items():
                buckets[name].take_back(report)
            raise
        now = self._clock()
        for (name, report), (level, demand) in zip(reports.items(), levels.levels, strict=True):
            buckets[name].learn(now, report, level=level, demand=demand)
        return levels

    def _spendings(self, reports: dict[str, Spending]) -> list[KeySpending]:
        buckets = self._auth.buckets()
        return [
            KeySpending(name, buckets[name].rate_per_s, buckets[name].burst, report.spent, report.offered)
            for name, report in reports.items()
        ]

    async def _follow(self, edition: int) -> None:
        if edition == self._edition or not self._auth.keyed:
            return
        before, self.stored = self.stored, await self._store.send(registry.stored_keys())
        self._edition = edition
        ended = self._auth.follow({name: stored.key for name, stored in self.stored.items()})
        if self.stored.keys() != before.keys() or ended:
            log.info("keys_followed", keys=len(self.stored), ended=sorted(ended)[:20])
        for end_requests in self.on_revoked if ended else ():
            end_requests(ended)

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(HURRY_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), BEAT_S - HURRY_S)
            self._hurry.clear()
            await self._beat_or_wait()

    async def _beat_or_wait(self) -> None:
        try:
            await self.beat()
        except StoreUnavailable as error:
            log.debug("keys_blind", reason=error.message)
            if self._clock() - self._heard_at > CUT_OFF_S:
                self._cut_off()
        except Exception:
            # The task must survive a bug, or no key would be revoked any more. Known keys stay valid for `TRUSTED_S`.
            log.exception("keys_unreadable")

    def _cut_off(self) -> None:
        for bucket in self._auth.buckets().values():
            bucket.cut_off(self._clock(), self._gateways)
