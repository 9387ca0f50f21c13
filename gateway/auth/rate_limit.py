"""Token buckets: whether a request may pass now, else when it may. Pure; moments are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Holds at most `burst` tokens, starts full, gains `rate_per_s`."""

    rate_per_s: float
    burst: float
    level: float = -1.0
    seen_at: float = 0.0

    def take(self, now: float, cost: float = 1.0) -> float:
        """Takes `cost` tokens and returns 0, or returns the seconds until so many are there."""
        level = self.burst if self.level < 0.0 else min(self.burst, self.level + (now - self.seen_at) * self.rate_per_s)
        self.seen_at = now
        if level >= cost:
            self.level = level - cost
            return 0.0
        self.level = level
        return (cost - level) / self.rate_per_s


class AddressBuckets:
    """A bucket for each of the last `most` client addresses that needed one."""

    def __init__(self, *, rate_per_s: float, burst: float, most: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._most = most
        self._buckets: dict[str, Bucket] = {}

    def take(self, address: str, now: float) -> float:
        bucket = self._buckets.pop(address, None) or Bucket(self._rate_per_s, self._burst)
        # Inserted last: if there are too many, the address that was used longest ago is forgotten.
        self._buckets[address] = bucket
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(now)
