"""What the store publishes for slots: wake-ups, jobs that a submit handed over, requests for the end of a job.

A wake-up says that a model has work; the subscription to wake-ups shows that the slot is present. Jobs that a submit handed
over come the same way: they are leased, so a slot whose subscription broke after an offer goes on under a new name. A wake-up
may be lost, because pub/sub survives no reconnect: then the slot asks.
"""

from __future__ import annotations

import redis

from penstock.broker.records import CancelRequested, Claim, HandedOver, Message, RolloutChanged, Wake
from penstock.broker.store.connection import connect
from penstock.broker.store.links.refusals import store_error
from penstock.broker.store.ops import prefix
from penstock.broker.store.registry import ROLLOUTS_KEY
from penstock.broker.store.replies import CLAIM_HEAD, claim_reply
from penstock.job import job_in

# A `WakeUps` has two sharded channels and one plain one; these are the kinds of messages on both.
_SUBSCRIPTIONS = 3
_MESSAGES = (b"smessage", b"message")


class WakeUps:
    """One subscription for one slot. Wait for `fileno()` to become readable, then `read()`.

    Listens on the queue's wake-up channel, on that of all rollouts and on the slot's own; if the last has no subscriber, a
    sweeper takes the slot's leases back early. Raises `StoreUnavailable` when the link breaks: close it and open a new one.
    """

    def __init__(self, url: str, queue: str, worker: str) -> None:
        self._queue, self._worker = queue, worker
        self._redis = connect(url, name=f"penstock-wake-{worker}", key=prefix(queue))
        self._pubsub = self._redis.pubsub()

    def open(self) -> WakeUps:
        """Subscribe; all subscriptions stand when this returns."""
        own = prefix(self._queue)
        try:
            # D108: sharded, so that the node of a cluster that has the queue knows who listens.
            self._pubsub.ssubscribe(f"{own}wake", f"{own}worker:{self._worker}")
            self._pubsub.subscribe(ROLLOUTS_KEY)
            for _ in range(_SUBSCRIPTIONS):
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

    def read(self) -> list[Message]:
        """All that has arrived; waits only for the rest of a message that has arrived in part."""
        connection = self._pubsub.connection
        messages: list[Message] = []
        try:
            # `get_message` would take longer, and would break the link at a message that has arrived in part.
            while connection is not None and connection.can_read():
                kind, _, data = connection.read_response()
                if kind == b"sunsubscribe":
                    raise redis.ConnectionError("another node has the queue now")
                if kind in _MESSAGES:
                    messages.append(self._parse(data))
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error
        return messages

    def _parse(self, data: bytes) -> Message:
        if data[:1] == b"c":
            return CancelRequested(job_in(data[1:].decode(), self._queue))
        if data[:1] == b"h":
            return HandedOver(*handed_over(data[1:], self._queue))
        return RolloutChanged() if data == b"r" else Wake()

    def close(self) -> None:
        self._pubsub.close()
        self._redis.close()


def handed_over(message: bytes, queue: str) -> tuple[str, Claim]:
    """Decode the claim that a submit made for a slot: its nonce, and the answer as `claim_reply` has it."""
    head, _, values = message.partition(b"\n")
    nonce, *sizes = head.split(b" ")
    reply, at = [], 0
    for size in map(int, sizes):
        reply.append(values[at : at + size])
        at += size
    numbers = [int(value) for value in reply[1:CLAIM_HEAD]]
    return nonce.decode(), claim_reply([reply[0], *numbers, *reply[CLAIM_HEAD:]], queue)
