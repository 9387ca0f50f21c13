"""Under which name a slot leases its jobs, until when, and the subscription that shows the sweepers that the slot lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.store.notifications import Message

# The slot stops this much before Redis would: the two clocks differ, and a message takes time.
_MARGIN_S = 2.0


class WakeUpListener(Protocol):
    """What `WakeUps` offers."""

    def fileno(self) -> int: ...

    def read(self) -> list[Message]: ...

    def close(self) -> None: ...


class Lease:
    """One slot's incarnations, one after the other: an incarnation ends with a lost lease, or a claim whose answer was lost.

    Nobody holds the jobs leased to an old name: no beat extends their leases and no subscription vouches for them, so a sweep
    soon takes them back.
    """

    def __init__(self, base: str, *, lease_s: float, listen: Callable[[str], WakeUpListener]) -> None:
        self._base = base
        self._lease_s = lease_s
        self._listen = listen
        self._count = 1
        self._confirmed_at = float("-inf")
        self._listener: WakeUpListener | None = None

    @property
    def name(self) -> str:
        return f"{self._base}.{self._count}"

    @property
    def is_listening(self) -> bool:
        return self._listener is not None

    def open(self) -> int:
        """Subscribe under the present name. The file descriptor to wait on; raises `StoreUnavailable`."""
        # D5: the subscription is the slot's presence.
        self._listener = self._listen(self.name)
        return self._listener.fileno()

    def renew(self) -> None:
        """Take a new name, and give up what is leased to the old one."""
        self.close()
        self._count += 1
        self._confirmed_at = float("-inf")

    def close(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            listener.close()

    def read(self) -> list[Message]:
        """The messages that arrived. Raises `StoreUnavailable` if the connection broke: then `close`, and `open` again."""
        return self._listener.read() if self._listener is not None else []

    def confirm(self, at: float) -> None:
        """A claim or beat sent at `at` (monotonic) was granted. Also called by the beat's thread."""
        self._confirmed_at = max(self._confirmed_at, at)

    def has_lapsed(self, now: float) -> bool:
        return now > self._confirmed_at + self._lease_s - min(_MARGIN_S, self._lease_s / 4)
