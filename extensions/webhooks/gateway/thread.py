"""The thread of a gateway process that delivers events: with an event loop and connections to the store of its own."""

# D92: docs/design/webhooks.md
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.aio import AsyncStore
from penstock.extensions.webhooks.gateway.bodies import EventBodies
from penstock.extensions.webhooks.gateway.deliverer import SIDE_BY_SIDE, CountDelivery, Deliverer
from penstock.extensions.webhooks.gateway.posting import Poster
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.store.outbox_listener import listen
from penstock.gateway.auth.keys import OWNER_PART
from penstock.settings.tables import Settings

log = structlog.get_logger(__name__)

# A gateway that stops waits this long for receivers; what it cuts off is sent again.
_DRAIN_S = 2.0
_CRASHED = Backoff(1.0, 30.0)


@contextmanager
def delivering(
    settings: Settings,
    *,
    open_store: Callable[[], AsyncStore],
    blobs: BlobStore,
    count: CountDelivery,
) -> Iterator[None]:
    """Deliver events while the block runs. Raises `ConfigError` for certificates that cannot be read."""
    poster = Poster(settings.extension(WebhooksSettings))
    delivery = _Delivery(settings, open_store=open_store, blobs=blobs, poster=poster, count=count)
    thread = threading.Thread(target=delivery.run, name="webhooks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        delivery.stop()
        thread.join(_DRAIN_S + 1.0)


class _Delivery:
    def __init__(
        self,
        settings: Settings,
        *,
        open_store: Callable[[], AsyncStore],
        blobs: BlobStore,
        poster: Poster,
        count: CountDelivery,
    ) -> None:
        self._settings = settings
        self._webhooks = settings.extension(WebhooksSettings)
        self._open_store = open_store
        self._blobs = blobs
        self._poster = poster
        self._count = count
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._deliver_always())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def _deliver_always(self) -> None:
        """Restart the deliverer after an unexpected error, so that it does not end deliveries for good."""
        crashes = BackoffCounter(_CRASHED)
        # A name that is looked up takes a thread, for as long as its servers do not answer; its event keeps a place so long.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(SIDE_BY_SIDE, "webhook"))
        while not self._stopping.is_set():
            try:
                await self._deliver()
            except Exception as error:
                pause_s = crashes.count_failure()
                log.error("deliverer_failed", error=repr(error), restart_in_s=pause_s, exc_info=True)
                await asyncio.wait([asyncio.ensure_future(self._stopping.wait())], timeout=pause_s)

    async def _deliver(self) -> None:
        store = self._open_store()
        bodies = EventBodies(self._settings, store=store, blobs=self._blobs)
        names = tuple(model.name for model in self._settings.model_infos())
        deliverer = Deliverer(
            self._webhooks,
            store=store,
            models=names,
            bodies=bodies,
            poster=self._poster,
            count=self._count,
            # Without keys there is one owner.
            share=SIDE_BY_SIDE // OWNER_PART if self._settings.keys else SIDE_BY_SIDE,
        )
        listening = listen(store.url, deliverer.hear)
        tasks = [asyncio.create_task(part) for part in (listening, deliverer.run(), self._stopping.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await deliverer.drain(_DRAIN_S if self._stopping.is_set() else 0.0)
            await store.close()
