"""A steady stream of jobs that goes on while something breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.faults.driver import Driver
from tests.faults.driver import order as plain_order


class Flow:
    """`threads` clients submit at most `per_second` jobs in all; each tries a job for `within_s` before it takes the next."""

    def __init__(
        self,
        driver: Driver,
        *,
        threads: int = 4,
        per_second: float = 50.0,
        make: Callable[[], Any] = plain_order,
        within_s: float = 60.0,
    ) -> None:
        self._driver = driver
        self._threads = threads
        self._pause_s = threads / per_second
        self._make = make
        self._within_s = within_s
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Submit while the block runs, and then wait until every submit that has begun is accepted."""
        with ThreadPoolExecutor(self._threads) as pool:
            clients = [pool.submit(self._submit) for _ in range(self._threads)]
            try:
                yield
            finally:
                self._stop.set()
            for client in clients:
                client.result()

    def _submit(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._driver.submit(self._make(), within_s=self._within_s)


def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    """Return the answer, and the seconds that the call took."""
    since = time.monotonic()
    return ask(), time.monotonic() - since
