"""`python -m penstock.cli.ops.flower_process`: stock Flower on the Celery app of penstock.

It replaces only the page of queues. Flower's own adds up a queue's priorities, lists only the queues of running workers, and
cannot log in to a store on a Unix socket. This one has a line per model and priority, for every model in the store.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from penstock.broker.celery_app import PRIORITY_STEPS
from penstock.broker.partitions import queues_of_model
from penstock.broker.store.connection import READ_TIMEOUT_S, cluster_nodes, connect_async, is_cluster
from penstock.broker.store.ops import priority_list, queue_name
from penstock.broker.store.registry import MODELS_KEY, models
from penstock.job import LATE_BAND
from penstock.model_spec import ModelInfo
from penstock.settings.tables import Settings

NAMES = {0: "interactive", LATE_BAND: "late", 9: "bulk"}


class StoreQueues:
    """Replaces Flower's `Broker` with the length of each list of tickets, which is the number of waiting jobs."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Per queue a line with all waiting jobs, then one per priority. `names`: the queues of running workers."""
        async with self._asking() as ask:
            keys, texts = await ask([("HKEYS", MODELS_KEY), ("HVALS", MODELS_KEY)])
            # A model that was added or removed between the two commands is seen next time.
            entries = models().decode(dict(zip(keys, texts, strict=False)))
            infos = [entry.info or ModelInfo(name) for name, entry in entries.items()]
            known = {queue_name(queue) for info in infos for queue in queues_of_model(info)}
            queues = sorted(known | {name for name in names if name.startswith("penstock.{")})
            lists = [priority_list(queue, step) for queue in queues for step in PRIORITY_STEPS]
            lengths = iter(await ask([("LLEN", name) for name in lists]))
        return [row for queue in queues for row in rows(queue, {step: next(lengths) for step in PRIORITY_STEPS})]

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Callable[[Sequence[Sequence[str]]], Awaitable[list[Any]]]]:
        """The client for plain commands: all of them in one round trip if the store is a single server."""
        if is_cluster(self._url):
            async with aclosing(cluster_nodes(self._url, name="penstock-flower", within_s=READ_TIMEOUT_S)) as nodes:
                yield nodes.answers
            return
        async with aclosing(connect_async(self._url, name="penstock-flower")) as redis:

            async def answers(commands: Sequence[Sequence[str]]) -> list[Any]:
                pipe = redis.pipeline(transaction=False)
                for words in commands:
                    pipe.execute_command(*words)
                return list(await pipe.execute())

            yield answers


def rows(queue: str, lengths: dict[int, int]) -> list[dict[str, Any]]:
    """The rows of one queue. The sum includes messages of stock Celery clients at other priorities."""
    parts = [{"name": f"{queue} {name}", "messages": lengths[step]} for step, name in NAMES.items()]
    return [{"name": queue, "messages": sum(lengths.values())}, *parts]


def ask_for_events(app: Any) -> None:
    """Have running workers send task events at once. Flower asks too, every five seconds, and logs each failure."""
    from celery.exceptions import OperationalError

    with suppress(OperationalError):
        app.control.enable_events()


def main() -> None:
    from celery.bin.celery import main as celery
    from flower import views

    from penstock.broker.celery_app import app

    # `penstock flower` has set the store.
    url = Settings.load().store.url or ""
    views.Broker = lambda *_, **__: StoreQueues(url)
    ask_for_events(app)
    # Flower reads its options from the command line; the app is found by name, as with `celery -A`.
    sys.argv = ["celery", "-A", "penstock.broker.celery_app", "flower", *sys.argv[1:]]
    celery()


if __name__ == "__main__":
    main()
