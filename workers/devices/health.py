"""Decides when a device that keeps failing gets a rest. Pure: moments are monotonic and passed in."""

from __future__ import annotations

from penstock.backoff import Backoff

_MANY, _WITHIN_S = 3, 60.0
_REST = Backoff(60.0, 600.0)


class DeviceHealth:
    """Counts the faults of one slot's device. After three within a minute it rests for a minute, then two, four, ... ten."""

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._rests = 0
        self._trusted_at = float("inf")

    def fault(self, now: float) -> float:
        """Note a fault. Returns the seconds to rest, or 0.0. A minute without a fault after a rest clears the count."""
        if now > self._trusted_at:
            self._rests, self._recent, self._trusted_at = 0, [], float("inf")
        self._recent = [*(at for at in self._recent if now - at < _WITHIN_S), now]
        if len(self._recent) < _MANY and not self._rests:
            return 0.0
        self._rests += 1
        rest_s = _REST.delay_s(self._rests)
        self._trusted_at = now + rest_s + _WITHIN_S
        return rest_s
