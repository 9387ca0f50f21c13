"""Under which name a slot holds its jobs, until when, and the subscription by which the sweepers see that it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.store.wakeup import CancelRequested, Wake

# The slot stops this much before Redis would: the two clocks run apart, and a message takes its time.
_MARGIN_S = 2.0


class WakeUpListener(Protocol):
    """What `WakeUps` offers."""

    def fileno(self) -> int: ...

    def read(self) -> list[Wake | CancelRequested]: ...

    def close(self) -> None: ...


class Lease:
    """One slot's incarnations, one after the other: a lost lease, or a claim whose answer was lost, ends one.

    Jobs leased to an old name are nobody's: no beat renews them and no subscription vouches for them, so
    they are soon taken back.
    """

    def __init__(self, base: str, *, lease_s: float, listen: Callable[[str], WakeUpListener]) -> None:
        self._base = base
        self._lease_s = lease_s
        self._listen = listen
        self._count = 1
        self._confirmed_at = float("-inf")
        self.ear: WakeUpListener | None = None

    @property
    def name(self) -> str:
        return f"{self._base}.{self._count}"

    def open(self) -> int:
        """Subscribe under the present name; what to wait on. Raises `StoreUnavailable`."""
        self.ear = self._listen(self.name)
        return self.ear.fileno()

    def renew(self) -> None:
        """A new name; what was held under the old one is given up."""
        self.close()
        self._count += 1
        self._confirmed_at = float("-inf")

    def close(self) -> None:
        if self.ear is not None:
            ear, self.ear = self.ear, None
            ear.close()

    def hear(self) -> list[Wake | CancelRequested]:
        """What has arrived; raises `StoreUnavailable` when the link broke: `close` and `open` again."""
        return self.ear.read() if self.ear is not None else []

    def confirmed(self, at: float) -> None:
        """A claim or beat sent at `at` (monotonic) was granted. Also called by the beat's thread."""
        self._confirmed_at = max(self._confirmed_at, at)

    def lapsed(self, now: float) -> bool:
        return now > self._confirmed_at + self._lease_s - min(_MARGIN_S, self._lease_s / 4)
