"""Wake-ups: the hint that a model has work. A wake-up may be lost or come twice and carries no job; the subscription shows that
the slot is present.
"""

from __future__ import annotations

from dataclasses import dataclass

import redis

from penstock.broker.store.connection import connect, store_error
from penstock.broker.store.encoding import prefix
from penstock.job_id import JobId


@dataclass(frozen=True, slots=True)
class Wake:
    """The model has work."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    id: JobId


class WakeUps:
    """One subscription for one slot. Wait for `fileno()` to become readable, then `read()`.

    Listens on the model's wake-up channel and on the slot's own; if the latter has no subscriber, a sweeper takes the slot's
    leases back early. Raises `StoreUnavailable` when the link breaks: close it and open a new one.
    """

    def __init__(self, url: str, model: str, worker: str) -> None:
        self._model, self._worker = model, worker
        # No read time-out: the slot's selector decides how long to wait.
        self._redis = connect(url, name=f"penstock-wake-{worker}", read_timeout_s=None)
        self._pubsub = self._redis.pubsub()

    def open(self) -> WakeUps:
        """Subscribe; both subscriptions stand when this returns."""
        try:
            self._pubsub.subscribe(f"{prefix(self._model)}wake", f"ps:worker:{self._worker}")
            for _ in range(2):
                self._pubsub.get_message(timeout=5.0)
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        return self

    def fileno(self) -> int:
        connection = self._pubsub.connection
        sock = connection._sock if connection else None
        if sock is None:
            raise store_error(redis.ConnectionError("the wake-up link is closed"))
        return int(sock.fileno())

    def read(self) -> list[Wake | CancelRequested]:
        """All that has arrived, without waiting."""
        found: list[Wake | CancelRequested] = []
        try:
            while (message := self._pubsub.get_message(timeout=0.0)) is not None:
                if message["type"] == "message":
                    found.append(self._parse(message["data"]))
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        return found

    def _parse(self, data: bytes) -> Wake | CancelRequested:
        if data[:1] == b"c":
            return CancelRequested(JobId(data[1:].decode(), self._model))
        return Wake()

    def close(self) -> None:
        self._pubsub.close()
        self._redis.close()
