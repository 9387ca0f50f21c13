"""A thread that repeats one call: what the beat and the sweeper have in common."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import structlog

from penstock.errors import StoreUnavailable

log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_JOIN_S = 10.0

Call = Callable[[float], float | None]


class PeriodicThread:
    """Calls `call(now)` every `every_s` seconds; sooner after a failure, after `wake`, or if the call returns a shorter pause.

    `failure_event` is logged when a call fails: once while the store is away, each time for any other error.
    """

    def __init__(self, name: str, every_s: float, call: Call, *, failure_event: str) -> None:
        self._every_s = every_s
        self._call = call
        self._failure_event = failure_event
        self._woken = threading.Event()
        self._stopped = False
        self._store_away = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopped = True
        self._woken.set()
        self._thread.join(timeout=_JOIN_S)

    def _run(self) -> None:
        while not self._stopped:
            pause_s = self._pause_after_call()
            # Up to a tenth shorter, so that the workers of a fleet do not all call at once.
            self._woken.wait(pause_s * random.uniform(0.9, 1.0))
            self._woken.clear()

    def _pause_after_call(self) -> float:
        try:
            pause_s = self._call(time.monotonic()) or self._every_s
        except StoreUnavailable as error:
            if not self._store_away:
                log.warning(self._failure_event, error=str(error))
            self._store_away = True
            return min(_RETRY_S, self._every_s)
        except Exception:
            # The thread must outlive a bug: without the beat every lease of this worker would lapse.
            log.exception(self._failure_event)
            return self._every_s
        self._store_away = False
        return pause_s
