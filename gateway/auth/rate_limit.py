"""Token buckets: whether a request may pass now, or else when. Pure; moments are monotonic seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

# The store's demand decays at the same rate (`keys.lua`).
DEMAND_S = 1.0
# A process without a share of the demand starts with a small share, until the store knows its demand.
LEAST_SHARE = 0.01


@dataclass(slots=True)
class Bucket:
    """Holds at most `burst` tokens, starts full, gains `rate_per_s`."""

    rate_per_s: float
    burst: float
    level: float = -1.0
    seen_at: float = 0.0

    def take(self, now: float, cost: float = 1.0) -> float:
        """Takes `cost` tokens and returns 0, or returns the seconds until the bucket has them."""
        level = self.burst if self.level < 0.0 else min(self.burst, self.level + (now - self.seen_at) * self.rate_per_s)
        self.seen_at = now
        if level >= cost:
            self.level = level - cost
            return 0.0
        self.level = level
        return (cost - level) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Spending:
    """Tokens since the last report: let through, and asked for."""

    spent: float = 0.0
    offered: float = 0.0


# D113: docs/design/gateway.md
class SharedBucket:
    """One gateway process's view of a bucket that all gateways spend from. Holds at most `burst` tokens, starts full.

    The process spends from the last known common level. The level grows by the process's share of `rate_per_s`, which is
    its share of the demand; a single process has the whole rate. A level below 0 is what all gateways let through beyond
    the limit; it grows by the whole rate, because no gateway lets requests pass until it is paid back.
    """

    __slots__ = (
        "_demand",
        "_demand_at",
        "_is_cut_off",
        "_level",
        "_offered",
        "_seen_at",
        "_share",
        "_spent",
        "burst",
        "rate_per_s",
    )

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s, self.burst = rate_per_s, burst
        self._level = burst
        self._seen_at = -math.inf
        self._share = 1.0
        self._spent = self._offered = 0.0
        self._demand, self._demand_at = 0.0, 0.0
        self._is_cut_off = False

    def take(self, now: float, cost: float = 1.0) -> float:
        """Takes `cost` tokens and returns 0, or returns the estimated seconds until the bucket has them."""
        self._grow(now)
        self._offered += cost
        if self._level >= cost:
            self._level -= cost
            self._spent += cost
            return 0.0
        debt, missing = min(0.0, self._level), cost - max(0.0, self._level)
        return (missing / self._share - debt) / self.rate_per_s

    @property
    def is_used(self) -> bool:
        """Whether there were requests since the last report."""
        return self._offered > 0.0

    def report(self) -> Spending:
        """The counts for the store since the last report."""
        spending = Spending(self._spent, self._offered)
        self._spent = self._offered = 0.0
        return spending

    def take_back(self, unheard: Spending) -> None:
        """Count this report again, because it did not reach the store."""
        self._spent += unheard.spent
        self._offered += unheard.offered

    def learn(self, now: float, heard: Spending, *, level: float, demand: float) -> None:
        """Take the common level and demand, which include the report `heard`."""
        self._demand = self._demand * math.exp(-(now - self._demand_at) / DEMAND_S) + heard.offered
        self._demand_at = now
        self._share = min(1.0, max(LEAST_SHARE, self._demand / demand)) if demand > 0.0 else 1.0
        self._level, self._seen_at = min(self.burst, level) - self._spent, now
        self._is_cut_off = False

    def cut_off(self, now: float, gateways: int) -> None:
        """Without the store: this process gets an equal part of rate and burst."""
        self._grow(now)
        self._share = 1.0 / gateways
        self._level = min(self._level, self.burst / gateways)
        # More is not charged later, because the rate was already divided. All parts together empty the bucket.
        self._spent = min(self._spent, self.burst / gateways)
        self._is_cut_off = True

    def _grow(self, now: float) -> None:
        gained = max(0.0, now - self._seen_at) * self.rate_per_s
        self._seen_at = now
        if self._level < 0.0:
            paid = min(gained, -self._level)
            self._level += paid
            gained -= paid
        most = self.burst * self._share if self._is_cut_off else self.burst
        self._level = min(most, self._level + gained * self._share)


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
