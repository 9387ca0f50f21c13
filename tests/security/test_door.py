"""`KeyAuth`: how keys are compared, what is remembered of addresses, and how fast a caller may try keys. The clock is faked."""

from __future__ import annotations

import gc
import hmac
import math
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random
from statistics import fmean as mean
from statistics import variance
from typing import Any

import httpx2
import pytest

from penstock.access import Key, Role, digest_of, is_weak, new_secret
from penstock.errors import ConfigError, RateLimited, Unauthorized
from penstock.gateway.auth.keys import EVERYBODY, GUESSES_BURST, GUESSES_PER_S, MAX_REMEMBERED, KeyAuth
from penstock.gateway.auth.rate_limit import AddressBuckets, Bucket
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import GatewayClient
from tests.security.keyed import ALICE, BOB, LIMITED

SECRET = "s3cret-" + "x" * 36
GUESSES = 10_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def key(**changes: Any) -> Key:
    plain = {"id": "ci", "sha256": digest_of(SECRET.encode()), "roles": frozenset({Role.SUBMIT}), "owner": "team"}
    return Key(**{**plain, **changes})


def opened(*keys: Key, clock: Clock | None = None) -> KeyAuth:
    clock = clock or Clock()
    return KeyAuth(keys, clock=clock, wall=clock)


RIGHT = f"Bearer ci.{SECRET}".encode()
WRONG = [
    None,
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer ci",
    b"Bearer ci.",
    b"Bearer .x",
    b"Bearer ci.wrong",
    b"Bearer nobody.wrong",
]


def test_a_right_key_is_its_owner_with_its_roles() -> None:
    caller = opened(key()).admit(RIGHT, "a")
    assert (caller.owner, set(caller.roles), caller.key_id) == ("team", {Role.SUBMIT}, "ci")


@pytest.mark.parametrize("given", [b"bearer ci." + SECRET.encode(), b"BEARER   ci." + SECRET.encode() + b" "])
def test_the_scheme_is_read_as_the_standard_says(given: bytes) -> None:
    assert opened(key()).admit(given, "a").owner == "team"


@pytest.mark.parametrize("given", WRONG)
def test_every_wrong_header_costs_one_hash_and_one_whole_comparison(
    given: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A26 by structure: an unknown id, a wrong secret and a missing key take the same steps, so their times do not differ."""
    compared: list[tuple[int, int]] = []

    def comparing(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return compare(left, right)

    compare: Callable[[bytes, bytes], bool] = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", comparing)
    with pytest.raises(Unauthorized):
        opened(key()).admit(given, "a")
    assert compared == [(32, 32)]


SAMPLES = 100_000
COPIES = 1_000
# Below this bound (of the test vector leakage assessment), Welch's t shows no difference between two sets of times.
LEAK = 4.5
TRIES = 5


def welch(times: dict[bytes, list[list[int]]]) -> float:
    """Welch's t of two guesses, over the mean time of each copy, without the slowest tenth: those times contain interrupts.

    A copy's place in memory makes all its checks faster or slower, so checks of one copy are not independent: with each check
    as a sample of its own, a process with scattered memory showed a difference in five of five measurements.
    """
    cut = sorted(chain.from_iterable(chain.from_iterable(times.values())))[int(1.8 * SAMPLES)]
    kept = ([[each for each in copy if each <= cut] for copy in copies] for copies in times.values())
    left, right = ([mean(copy) for copy in copies if copy] for copies in kept)
    spread = variance(left) / len(left) + variance(right) / len(right)
    return abs(mean(left) - mean(right)) / math.sqrt(spread)


def timed(check: Callable[[bytes], object], draw: Random, *guesses: bytes) -> dict[bytes, list[list[int]]]:
    """The nanoseconds of each check, by guess and copy.

    The order of the checks is random, so that other load on the machine affects all guesses alike. Each guess exists in a
    thousand copies, which are also put into memory in random order: a header that lies across two cache lines takes a quarter
    of a nanosecond longer in every check.
    """
    placed = list(guesses) * COPIES
    draw.shuffle(placed)
    times: dict[bytes, list[list[int]]] = {guess: [] for guess in guesses}
    order = []
    for guess in placed:
        times[guess].append([])
        order.append((bytes(bytearray(guess)), times[guess][-1]))
    order *= SAMPLES // COPIES
    draw.shuffle(order)
    gc.disable()
    for given, of_copy in order:
        before = time.perf_counter_ns()
        check(given)
        of_copy.append(time.perf_counter_ns() - before)
    gc.enable()
    return times


def test_a_guess_that_is_nearly_right_takes_no_longer_than_one_that_is_all_wrong() -> None:
    near, far = f"Bearer ci.{SECRET[:-1]}y".encode(), b"Bearer ci." + b"z" * len(SECRET)
    draw = Random(1)
    # Another process on the same core can distort one measurement; a leak shows in every measurement.
    assert any(welch(timed(opened(key()).identify, draw, near, far)) < LEAK for _ in range(TRIES))


def test_the_same_measurement_tells_a_comparison_that_ends_at_the_first_difference() -> None:
    """The measurement can find a leak; otherwise the test above would pass for any implementation."""

    def naive(given: bytes) -> bool:
        return all(left == right for left, right in zip(given, RIGHT, strict=True))

    near, far = f"Bearer ci.{SECRET[:-1]}y".encode(), b"Bearer ci." + b"z" * len(SECRET)
    draw = Random(1)
    assert welch(timed(naive, draw, near, far)) > LEAK


def test_an_expired_key_is_a_wrong_key_even_where_it_was_remembered() -> None:
    clock = Clock()
    door = opened(key(expires_at=clock.now + 10.0), clock=clock)
    assert door.admit(RIGHT, "a").owner == "team"
    clock.now += 10.0
    with pytest.raises(Unauthorized):
        door.admit(RIGHT, "a")


def test_only_right_headers_are_remembered_and_not_endlessly_many() -> None:
    door = opened(key(burst=10_000))
    for spaces in range(MAX_REMEMBERED + 10):
        door.admit(b"Bearer " + b" " * spaces + f"ci.{SECRET}".encode(), "a")
        with pytest.raises((Unauthorized, RateLimited)):
            door.admit(b"Bearer ci.wrong%d" % spaces, "a")
    assert len(door._remembered) <= MAX_REMEMBERED
    assert not any(b"wrong" in header for header in door._remembered)


def test_ten_thousand_guesses_are_slowed_down_and_the_right_key_beside_them_is_not() -> None:
    clock, refused = Clock(), {Unauthorized: 0, RateLimited: 0}
    door = opened(key(), clock=clock)
    for guess in range(10_000):
        clock.now += 0.001
        try:
            door.admit(b"Bearer ci.%d" % guess, "attacker")
        except (Unauthorized, RateLimited) as error:
            refused[type(error)] += 1
        if guess % 20 == 0:
            assert door.admit(RIGHT, "attacker").owner == "team"
    assert refused[Unauthorized] <= 20 + 10 + 1
    assert refused[Unauthorized] + refused[RateLimited] == 10_000


def test_a_gateway_without_keys_serves_everybody_and_may_have_a_rate() -> None:
    assert opened().admit(None, "a") is EVERYBODY
    door = KeyAuth(rate_per_s=1.0, burst=2, clock=Clock())
    assert [door.admit(None, "a") for _ in range(2)] == [EVERYBODY] * 2
    with pytest.raises(RateLimited) as caught:
        door.admit(None, "b")
    assert caught.value.retry_after_s == pytest.approx(1.0)


def test_a_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    bucket = Bucket(rate_per_s=2.0, burst=3)
    assert [bucket.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.take(0.5) == 0.0
    assert bucket.take(0.75) == pytest.approx(0.25)
    assert [bucket.take(1_000.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_addresses_are_forgotten_oldest_first_so_that_their_number_costs_nothing() -> None:
    buckets = AddressBuckets(rate_per_s=1.0, burst=1.0, most=3)
    assert [buckets.take(address, 0.0) for address in "abcd"] == [0.0] * 4
    assert buckets.take("d", 0.0) > 0.0
    assert buckets.take("a", 0.0) == 0.0
    assert len(buckets._buckets) == 3


def test_secrets_are_long_and_random_and_weak_ones_are_known() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) >= 43
    assert all(is_weak(digest_of(word)) for word in (b"", b"secret", b"changeme", b"example"))
    assert is_weak("0" * 64)
    assert not is_weak(digest_of(new_secret().encode()))


KEY = f'[[keys]]\nid = "ci"\nsha256 = "{digest_of(SECRET.encode())}"\nroles = ["submit"]\n'


def test_a_key_is_declared_in_the_file_or_in_a_secret_file(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(KEY)
    (tmp_path / "keys.toml").write_text(KEY + KEY.replace('"ci"', '"cd"'))
    [only] = Settings.load(tmp_path / "penstock.toml", {}).access_keys()
    assert (only.id, only.owner, only.rate_per_s, only.burst) == ("ci", "ci", 100.0, 200)
    both = Settings.load(tmp_path / "penstock.toml", {"PENSTOCK_KEYS_FILE": str(tmp_path / "keys.toml")}).access_keys()
    assert [key.id for key in both] == ["ci", "cd"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (KEY + KEY, "two keys have the id 'ci'"),
        (KEY.replace("submit", "boss"), "keys.0.roles.0: must be"),
        (KEY.replace('["submit"]', "[]"), "keys.0.roles: name at least one"),
        (KEY.replace(digest_of(SECRET.encode()), SECRET), "keys.0.sha256: must be the SHA-256"),
        (KEY.replace(digest_of(SECRET.encode()), digest_of(b"example")), "keys.0.sha256: is the hash of an example"),
        (KEY + f'secret = "{SECRET}"\n', "keys.0.secret: no such setting"),
        (KEY + "expires_at = 2020-01-01\n", "keys.0.expires_at"),
        (f"{SECRET}\n", "PENSTOCK_KEYS: must hold [[keys]]"),
    ],
)
def test_a_key_that_cannot_be_used_is_a_fault_that_does_not_repeat_a_secret(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(None, {"PENSTOCK_KEYS": text})
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_key_over_its_rate_is_told_when_to_come_back_and_others_are_served(gateway: httpx2.Client) -> None:
    answers = [gateway.get("/v1/models", headers=LIMITED.header) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["code"] == "rate_limited"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= math.ceil(20 * 1.2)
    assert gateway.get("/v1/models", headers=BOB.header).status_code == 200


def guess(connection: socket.socket, numbers: range) -> list[bytes]:
    """The statuses of requests with wrong keys, one per number, all sent in one write."""
    asks = (f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice.{n}\r\n\r\n" for n in numbers)
    connection.sendall("".join(asks).encode("ascii"))
    answers = b""
    while len(statuses := re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)) < len(numbers):
        answers += connection.recv(1 << 20)
    return statuses


def test_ten_thousand_guesses_over_http_end_in_429_and_lock_nobody_out(
    gateway: GatewayClient, stranger: httpx2.Client, strange_address: str
) -> None:
    seen: Counter[bytes] = Counter()
    victim = set()
    place = (gateway.base_url.host, gateway.base_url.port or 80)
    started = time.monotonic()
    with socket.create_connection(place, timeout=10.0, source_address=(strange_address, 0)) as connection:
        for first in range(0, GUESSES, 100):
            seen.update(guess(connection, range(first, first + 100)))
            # The holder of the guessed key calls from the same address as the attacker.
            victim.add(stranger.get("/v1/models", headers=ALICE.header).status_code)
    assert seen.keys() == {b"401", b"429"}
    assert seen.total() == GUESSES
    assert seen[b"401"] <= GUESSES_BURST + GUESSES_PER_S * (time.monotonic() - started) + 1
    assert victim == {200}
