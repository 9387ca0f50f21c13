"""Receivers whose names are not found in time: a look-up keeps its thread, and so its owner's place, until it ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

import redis

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.gateway.bodies import EventBodies
from penstock.extensions.webhooks.gateway.deliverer import SIDE_BY_SIDE, Deliverer
from penstock.extensions.webhooks.gateway.posting import Poster
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.webhook import Webhook, new_signing_key
from penstock.gateway.auth.keys import OWNER_PART
from penstock.settings.tables import Settings
from tests.contract.dumps import RedisDump
from tests.contract.hooked import ended
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually_async
from tests.webhook_receiver import Receiver, receiver

SHARE = SIDE_BY_SIDE // OWNER_PART
OWNERS = ("ann", "bob")
MODEL = "lookups"


class StalledNames:
    """A resolver, as `getaddrinfo` behind a name server that does not answer: it returns when the test lets it.

    Host names are `<number>.<owner>.example`; those of carol are found at once.
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.answers = threading.Event()
        self._guard = threading.Lock()

    def __call__(self, host: str, port: int) -> list[str]:
        owner = host.split(".")[1]
        if owner in OWNERS:
            with self._guard:
                self.held[owner] += 1
            self.answers.wait(120.0)
        return ["127.0.0.1"]


@asynccontextmanager
async def delivering(
    redis_url: str, folder: Path, hooks: WebhooksSettings, names: StalledNames, count: Callable[[str], None]
) -> AsyncIterator[None]:
    """A deliverer as a gateway has one."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(SIDE_BY_SIDE))
    settings, store = Settings.load(None, {"PENSTOCK_REDIS_URL": redis_url}), AsyncStore(redis_url)
    await store.start()
    deliverer = Deliverer(
        hooks,
        store=store,
        models=(MODEL,),
        bodies=EventBodies(settings, store=store, blobs=LocalBlobs(folder)),
        poster=Poster(hooks, resolve=names),
        count=count,
        share=SHARE,
    )
    running = asyncio.create_task(deliverer.run())
    try:
        yield
    finally:
        names.answers.set()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await deliverer.drain(1.0)
        await store.close()


async def test_look_ups_that_outlive_their_attempts_hold_up_no_other_owner(redis_url: str, tmp_path: Path) -> None:
    """Regression: an attempt ended with its time-out and gave its place back, while its look-up kept a thread: two owners
    held all 64, the look-ups of a third waited for a thread until their time-out, and its circuit was closed.
    """
    names, ends = StalledNames(), Counter[str]()
    with closing(RedisStore(redis_url)) as store, redis.Redis.from_url(redis_url) as client, receiver() as hooks:
        queue, port = ModelQueue(store, MODEL, RedisDump(client, MODEL).dump), hooks.url.rpartition(":")[2].rstrip("/")
        urls = {owner: [f"http://{n}.{owner}.example:{port}/" for n in range(SIDE_BY_SIDE)] for owner in (*OWNERS, "carol")}
        for owner in OWNERS:
            for url in urls[owner]:
                ended(queue, Webhook(url), owner=owner)
        rules = tuple(url for own in urls.values() for url in own)
        table = WebhooksSettings(signing_keys=(new_signing_key(),), urls=rules, timeout_s=0.3)
        async with delivering(redis_url, tmp_path, table, names, lambda end: ends.update([end])):
            # All attempts of the first round have ended, and their look-ups go on.
            await eventually_async(lambda: is_so(ends["retried"] >= SHARE * len(OWNERS)))
            for number, url in enumerate(urls["carol"][:20], 1):
                ended(queue, Webhook(url), owner="carol")
                await eventually_async(partial(has_come, hooks, number))
            assert names.held == dict.fromkeys(OWNERS, SHARE)
            # Places are free again once the look-ups are over.
            names.answers.set()
            await eventually_async(partial(has_come, hooks, 20 + SIDE_BY_SIDE), timeout_s=60.0)


async def is_so(fact: bool) -> bool:
    return fact


async def has_come(hooks: Receiver, count: int) -> bool:
    return len(hooks.requests) >= count
