"""Several gateways share the rate of a key: simulated with the code that decides, and the twin of the store's function."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from penstock.broker.store.registry import KeySpending
from penstock.gateway.auth.key_beat import BEAT_S, GONE_S, HURRY_S
from penstock.gateway.auth.rate_limit import SharedBucket
from tests.oracle.key_levels import KeyLevelsOracle

RATE, BURST, SECONDS = 100.0, 50.0, 60.0
# Requests of one caller in the whole, per gateway, at this moment.
Offered = Callable[[float, int, int], float]


@dataclass
class Gateways:
    """So many gateway processes that beat one after another, and one caller of all of them."""

    count: int
    store: KeyLevelsOracle = field(default_factory=KeyLevelsOracle)
    store_is_away: Callable[[float], bool] = lambda now: False
    passed: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buckets = [SharedBucket(RATE, BURST) for _ in range(self.count)]
        self.beat_at = [0.0] * self.count

    def run(self, offered: Offered, *, seconds: float = SECONDS, seed: int = 1) -> None:
        for now, gateway in sorted([*self._beats(seconds), *self._requests(offered, seconds, random.Random(seed))]):
            if gateway >= self.count:
                self._beat(now, gateway - self.count)
            elif self.buckets[gateway].take(now) == 0.0:
                self.passed.append(now)
            else:
                self.refused.append(now)
                if now - self.beat_at[gateway] >= HURRY_S:
                    self._beat(now, gateway)

    def _beats(self, seconds: float) -> Iterator[tuple[float, int]]:
        for gateway in range(self.count):
            for beat in range(int(seconds / BEAT_S)):
                yield (beat + gateway / self.count) * BEAT_S, gateway + self.count

    def _requests(self, offered: Offered, seconds: float, chance: random.Random) -> Iterator[tuple[float, int]]:
        step_s = 0.01
        for step in range(int(seconds / step_s)):
            for gateway in range(self.count):
                expected = offered(step * step_s, gateway, self.count) * step_s
                for _ in range(int(expected) + (chance.random() < expected % 1)):
                    yield (step + chance.random()) * step_s, gateway

    def _beat(self, now: float, gateway: int) -> None:
        bucket, self.beat_at[gateway] = self.buckets[gateway], now
        if self.store_is_away(now):
            bucket.cut_off(now, self.count)
            return
        heard = bucket.report()
        spending = KeySpending("key", RATE, BURST, heard.spent, heard.offered)
        [(level, demand)] = self.store.spend(f"g{gateway}", [spending], ttl_s=GONE_S, now=now).levels
        bucket.learn(now, heard, level=level, demand=demand)

    @property
    def most_above_rate(self) -> float:
        """How many more passed than the rate allows, in that interval in which these were most."""
        lowest, most = 0.0, 0.0
        for number, at in enumerate(self.passed):
            lowest = min(lowest, number - RATE * at)
            most = max(most, number + 1 - RATE * at - lowest)
        return most


def evenly(now: float, gateway: int, count: int) -> float:
    return 5 * RATE / count


def at_one(now: float, gateway: int, count: int) -> float:
    return 5 * RATE if gateway == 0 else 0.0


def mostly_at_one(now: float, gateway: int, count: int) -> float:
    return 4.5 * RATE if gateway == 0 else 0.5 * RATE / (count - 1)


def wandering(now: float, gateway: int, count: int) -> float:
    """All of it at another gateway every two seconds, as if the caller knew how the gateways count."""
    return 5 * RATE if int(now / 2) % count == gateway else 0.0


def in_bursts(now: float, gateway: int, count: int) -> float:
    """A second of everything at once, then a rest in which the bucket fills."""
    return 50 * RATE if now % 6 < 1 else 0.0


PATTERNS = [evenly, at_one, mostly_at_one, wandering, in_bursts]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("offered", PATTERNS)
def test_in_any_interval_no_more_pass_than_the_rate_a_second_of_it_and_a_burst_per_gateway(
    offered: Offered, count: int
) -> None:
    """Each gateway counted for itself, so that a key had a multiple of its rate."""
    gateways = Gateways(count)
    gateways.run(offered)
    assert gateways.refused
    assert gateways.most_above_rate <= count * BURST + RATE


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("offered", PATTERNS[:4])
def test_a_caller_who_asks_for_more_gets_its_rate_wherever_it_asks(offered: Offered, count: int) -> None:
    gateways = Gateways(count)
    gateways.run(offered)
    assert len(gateways.passed) == pytest.approx(RATE * SECONDS, rel=0.02)


@pytest.mark.parametrize("count", [2, 5])
def test_what_passed_too_much_at_once_is_paid_back(count: int) -> None:
    gateways = Gateways(count)
    gateways.run(in_bursts)
    assert len(gateways.passed) <= RATE * SECONDS + count * BURST
    many = Gateways(count)
    many.run(lambda now, gateway, count: 50 * RATE if now < 1 else 5 * RATE / count)
    assert len([at for at in many.passed if at < 1]) >= BURST + RATE
    assert len(many.passed) <= RATE * SECONDS + BURST + RATE


@pytest.mark.parametrize("offered", [evenly, at_one, mostly_at_one])
@pytest.mark.parametrize("count", [2, 5])
def test_a_caller_below_its_rate_is_not_refused(offered: Offered, count: int) -> None:
    gateways = Gateways(count)
    gateways.run(lambda now, gateway, count: offered(now, gateway, count) * 0.7 / 5)
    assert not gateways.refused


@pytest.mark.parametrize("count", [2, 5])
def test_while_the_store_is_away_each_gateway_has_an_equal_part(count: int) -> None:
    gateways = Gateways(count, store_is_away=lambda now: 20.0 <= now < 40.0)
    gateways.run(evenly)
    away = [at for at in gateways.passed if 21.0 <= at < 40.0]
    assert len(away) == pytest.approx(19 * RATE, rel=0.05)
    # What passed meanwhile is not charged once more: the callers would be refused for as long as the store was away.
    assert len([at for at in gateways.passed if at >= 40.0]) == pytest.approx(20 * RATE, rel=0.05)
    assert gateways.most_above_rate <= count * BURST + RATE


def test_a_refusal_says_when_so_much_is_there_again() -> None:
    bucket = SharedBucket(rate_per_s=10.0, burst=5.0)
    for _ in range(5):
        assert bucket.take(0.0) == 0.0
    assert bucket.take(0.0) == pytest.approx(0.1)
    bucket.learn(0.0, bucket.report(), level=-20.0, demand=12.0)
    # A debt is paid back at the whole rate, and then half of it is this gateway's.
    assert bucket.take(0.0) == pytest.approx(2.0 + 0.2)
    assert bucket.take(2.1) > 0.0
    assert bucket.take(2.21) == 0.0


def test_what_the_store_did_not_hear_of_is_said_again() -> None:
    bucket = SharedBucket(rate_per_s=10.0, burst=5.0)
    bucket.take(0.0)
    heard = bucket.report()
    assert not bucket.is_used
    bucket.take_back(heard)
    bucket.take(0.0)
    again = bucket.report()
    assert (again.spent, again.offered) == (2.0, 2.0)
