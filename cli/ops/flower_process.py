"""`python -m penstock.cli.ops.flower_process`: stock Flower on our Celery app.

One thing of it is ours: the page of queues. Flower adds a queue's priorities up, lists only what running workers name, and
cannot log in to a store on a Unix socket; ours has a line per model and priority, for every model that the store knows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Any, cast

from penstock.broker.celery_app import PRIORITY_SEPARATOR, PRIORITY_STEPS, queue_name
from penstock.broker.store.connection import connect_async
from penstock.broker.store.registry import MODELS_KEY
from penstock.job import LATE_BAND
from penstock.settings.tables import Settings

NAMES = {0: "interactive", LATE_BAND: "late", 9: "bulk"}


class StoreQueues:
    """In the place of Flower's `Broker`: the length of each list of tickets, which is what waits."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Per model its queue's name with all that waits, then a line per priority. `names`: what the workers serve."""
        async with aclosing(connect_async(self._url, name="penstock-flower")) as redis:
            models = cast("list[bytes]", await redis.hkeys(MODELS_KEY))
            known = {queue_name(model.decode()) for model in models}
            queues = sorted(known | {name for name in names if name.startswith("penstock.{")})
            pipe = redis.pipeline(transaction=False)
            for queue in queues:
                for step in PRIORITY_STEPS:
                    pipe.llen(f"{queue}{PRIORITY_SEPARATOR}{step}" if step else queue)
            lengths = iter(await pipe.execute())
        return [row for queue in queues for row in rows(queue, {step: next(lengths) for step in PRIORITY_STEPS})]


def rows(queue: str, lengths: dict[int, int]) -> list[dict[str, Any]]:
    """What Flower shows of one model. A stock client's message may lie at a priority that is none of ours: it is in the sum."""
    parts = [{"name": f"{queue} {name}", "messages": lengths[step]} for step, name in NAMES.items()]
    return [{"name": queue, "messages": sum(lengths.values())}, *parts]


def ask_for_events(app: Any) -> None:
    """Have running workers tell of their tasks at once. Flower asks too, every five seconds, and logs it when it cannot."""
    from celery.exceptions import OperationalError

    with suppress(OperationalError):
        app.control.enable_events()


def main() -> None:
    from celery.bin.celery import main as celery
    from flower import views

    from penstock.broker.celery_app import app

    # `penstock flower` has named one.
    url = Settings.load().store.url or ""
    views.Broker = lambda *_, **__: StoreQueues(url)
    ask_for_events(app)
    # What Flower was told stands in its own options; the app is found by name, as `celery -A` finds it.
    sys.argv = ["celery", "-A", "penstock.broker.celery_app", "flower", *sys.argv[1:]]
    celery()


if __name__ == "__main__":
    main()
