"""A server with known latencies: one device that serves up to `most` waiting calls in `fixed_s` + n `per_item_s` seconds.

With `most` 1 and Poisson arrivals it is the M/D/1 queue. Pure; `known_server` is the same server with real sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownDevice:
    fixed_s: float
    per_item_s: float = 0.0
    most: int = 1

    def run_s(self, items: int) -> float:
        return self.fixed_s + items * self.per_item_s


def latencies(device: KnownDevice, arrivals: Sequence[float]) -> list[float]:
    """The latency of each of the ascending arrivals."""
    found: list[float] = []
    free_at = 0.0
    while len(found) < len(arrivals):
        begins_at = max(free_at, arrivals[len(found)])
        items = _waiting(arrivals, len(found), begins_at, device.most)
        free_at = begins_at + device.run_s(items)
        found += [free_at - at for at in arrivals[len(found) : len(found) + items]]
    return found


def _waiting(arrivals: Sequence[float], first: int, now: float, most: int) -> int:
    count = 0
    while count < most and first + count < len(arrivals) and arrivals[first + count] <= now:
        count += 1
    return count


def mean_latency_s(rate: float, service_s: float) -> float:
    """The long-run mean of M/D/1: the service time and the Pollaczek-Khinchine wait, rho D / (2 (1 - rho))."""
    rho = rate * service_s
    return service_s + rho * service_s / (2.0 * (1.0 - rho))
