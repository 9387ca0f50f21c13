"""The twin of `spend` in `keys.lua`: the buckets of keys over all gateways. Pure; moments are seconds of one clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.broker.store.registry import KeyLevels, KeySpending

DEMAND_S = 1.0
UNHEARD_S = 0.5


@dataclass(slots=True)
class _KeyBucket:
    level: float
    at: float
    demand: float = 0.0


@dataclass(slots=True)
class KeyLevelsOracle:
    """What the store knows of the keys' rates."""

    _buckets: dict[str, _KeyBucket] = field(default_factory=dict)
    _gateways: dict[str, float] = field(default_factory=dict)

    def spend(self, gateway: str, spendings: Sequence[KeySpending], *, ttl_s: float, now: float) -> KeyLevels:
        self._gateways[gateway] = now
        self._gateways = {name: at for name, at in self._gateways.items() if at > now - ttl_s}
        return KeyLevels(0, len(self._gateways), now, [self._level(one, now) for one in spendings])

    def _level(self, one: KeySpending, now: float) -> tuple[float, float]:
        bucket = self._buckets.setdefault(one.key, _KeyBucket(one.burst, now))
        passed_s = max(0.0, now - bucket.at)
        most = one.burst + UNHEARD_S * one.rate_per_s
        bucket.level = min(most, bucket.level + passed_s * one.rate_per_s) - one.spent
        bucket.demand = bucket.demand * math.exp(-passed_s / DEMAND_S) + one.offered
        bucket.at = now
        return bucket.level, bucket.demand
