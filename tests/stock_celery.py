"""A client that has none of penstock's code. Its connections end with it.

Celery keeps them in pools of the whole process, for the next client of the same URL. Regression: a test of connections closes
all that its server has, and a later file's client in the same process was given one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu import pools


@contextmanager
def stock_celery(url: str, **conf: Any) -> Iterator[Celery]:
    with Celery("stock", broker=url, backend=url, set_as_current=False) as app:
        app.conf.update(conf)
        try:
            yield app
        finally:
            pools.reset()  # type: ignore[no-untyped-call]
