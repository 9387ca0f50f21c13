"""What a slot knows of a queue that it claims from. Pure: moments are monotonic and passed in."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.records import Claim


class KnownQueue:
    """What a slot knows of one queue, from the store's answers there. `worker` is called for the slot's name in that queue.

    `is_home`: a submit may hand its jobs to the slot there. Moments are monotonic.
    """

    __slots__ = ("asked_at", "asked_for", "depth", "foreign_at", "is_home", "queue", "retry_at", "vain_for", "woken", "worker")

    def __init__(self, queue: str, *, worker: Callable[[], str] = str) -> None:
        self.queue = queue
        self.worker = worker
        self.is_home = True
        self.depth = 0
        # The store wakes only slots whose last claim found nothing, once the queue is as long as they wished; the others ask.
        self.asked_for = 1
        self.vain_for: int | None = None
        self.woken = False
        self.retry_at: float | None = None
        self.asked_at = float("-inf")
        self.foreign_at = float("-inf")

    def on_wake_up(self) -> None:
        """A wake-up came, or the queue may have work for another reason."""
        self.woken = True
        self.vain_for = None

    def on_answer(self, claim: Claim, now: float) -> None:
        """The store's answer to a request of this slot, made by the slot itself or by a submit."""
        self.depth = claim.depth
        self.asked_at = now
        self.woken = False
        if claim.messages:
            self.foreign_at = now
        self.vain_for = None if claim.jobs or claim.messages else self.asked_for
        self.retry_at = None if claim.jobs or claim.retry_in_s is None else now + max(0.0, claim.retry_in_s)

    @property
    def weight(self) -> int:
        """The slot chooses among queues by this weight: the last known length, and twice that at home."""
        length = self.depth or int(self.woken)
        return 2 * length + 1 if self.is_home else length
