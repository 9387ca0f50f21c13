"""Hears which prefix has an event that is due. A message is a hint and may be lost, so listeners also poll."""

# D92: docs/design/webhooks.md
from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import redis
import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.store.connection import RedisConnection, connect_async
from penstock.broker.store.links.refusals import store_error
from penstock.extensions.webhooks.store.outbox import EVENTS_CHANNEL

log = structlog.get_logger(__name__)
_RECONNECT = Backoff(0.05, 2.0)


async def listen(url: str, on_event: Callable[[str], None]) -> None:
    """Call `on_event` with the prefix of a model, or that of runs, until this task is cancelled."""
    failures = BackoffCounter(_RECONNECT)
    while True:
        try:
            await _listen_once(url, on_event, failures)
        except (redis.RedisError, OSError) as error:
            pause_s = failures.count_failure()
            log.warning("event_link_lost", error=str(store_error(error)), retry_in_s=pause_s)
            await asyncio.sleep(pause_s)


async def _listen_once(url: str, on_event: Callable[[str], None], failures: BackoffCounter) -> None:
    client = connect_async(url, name="penstock-events", read_timeout_s=None)
    try:
        async with client.pubsub() as pubsub:
            await pubsub.subscribe(EVENTS_CHANNEL)
            failures.reset()
            connection = cast("RedisConnection", pubsub.connection)
            while True:
                kind, _, data = await connection.read_response(timeout=math.inf)
                if kind == b"message":
                    on_event(data.decode())
    finally:
        await client.aclose()
