"""Keys of the store beside those of the settings: who is let in, and who is not once it is unclear."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.access import Key, Role, digest_of
from penstock.errors import RateLimited, StoreUnavailable, Unauthorized
from penstock.gateway.auth.keys import NOBODY, KeyAuth


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def key(name: str, secret: str = "s" * 43, **changes: Any) -> Key:
    return Key(name, digest_of(secret.encode()), frozenset({Role.SUBMIT}), "team", **changes)


def header(name: str, secret: str = "s" * 43) -> bytes:
    return f"Bearer {name}.{secret}".encode()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def auth(clock: Clock) -> KeyAuth:
    """One that declares `own`, and knows the keys of the store for a minute."""
    made = KeyAuth([key("own")], clock=clock, wall=clock)
    made.trust_for(60.0)
    return made


def test_a_key_of_the_store_is_let_in_and_refused_once_it_is_revoked(auth: KeyAuth) -> None:
    with pytest.raises(Unauthorized):
        auth.admit(header("ci"), "a")
    assert auth.follow({"ci": key("ci")}) == set()
    assert auth.admit(header("ci"), "a").key_id == "ci"
    assert auth.follow({}) == {"ci"}
    with pytest.raises(Unauthorized):
        auth.admit(header("ci"), "a")
    assert auth.identify(header("ci")) is NOBODY


def test_a_key_with_another_secret_is_another_key(auth: KeyAuth) -> None:
    auth.follow({"ci": key("ci")})
    auth.admit(header("ci"), "a")
    mark = auth.secret_mark("ci")
    assert auth.follow({"ci": key("ci", "t" * 43)}) == {"ci"}
    with pytest.raises(Unauthorized):
        auth.admit(header("ci"), "a")
    assert auth.caller_of_key("ci", mark) is None
    assert auth.admit(header("ci", "t" * 43), "a").key_id == "ci"


def test_a_session_ends_with_its_key(auth: KeyAuth) -> None:
    auth.follow({"ci": key("ci")})
    mark = auth.secret_mark("ci")
    assert auth.caller_of_key("ci", mark) is not None
    auth.follow({})
    assert auth.caller_of_key("ci", mark) is None


def test_a_key_of_the_settings_stands_before_one_of_the_store(auth: KeyAuth) -> None:
    assert auth.follow({"own": key("own", "t" * 43, rate_per_s=7.0)}) == set()
    assert auth.admit(header("own"), "a").key_id == "own"
    with pytest.raises(Unauthorized):
        auth.admit(header("own", "t" * 43), "a")
    assert auth.follow({}) == set()
    assert auth.admit(header("own"), "a").key_id == "own"


def test_what_was_spent_stays_spent_when_other_keys_change(auth: KeyAuth) -> None:
    auth.follow({"ci": key("ci", burst=1, rate_per_s=0.1)})
    auth.admit(header("ci"), "a")
    auth.follow({"ci": key("ci", burst=1, rate_per_s=0.1), "other": key("other")})
    with pytest.raises(RateLimited):
        auth.admit(header("ci"), "a")


def test_keys_that_could_not_be_read_for_too_long_are_asked_to_come_again(auth: KeyAuth, clock: Clock) -> None:
    """A key may have been revoked meanwhile; and one that nobody knows here may have been made."""
    auth.follow({"ci": key("ci")})
    clock.now += 59.0
    assert auth.admit(header("ci"), "a").key_id == "ci"
    mark = auth.secret_mark("ci")
    clock.now += 2.0
    for sent in (header("ci"), header("unknown"), header("own", "wrong")):
        with pytest.raises(StoreUnavailable):
            auth.admit(sent, "a")
    with pytest.raises(StoreUnavailable):
        auth.caller_of_key("ci", mark)
    assert auth.identify(header("ci")) is NOBODY
    with pytest.raises(Unauthorized):
        auth.admit(None, "a")
    assert auth.admit(header("own"), "a").key_id == "own"
    auth.trust_for(60.0)
    assert auth.admit(header("ci"), "a").key_id == "ci"


def test_guesses_are_slowed_down_while_the_store_is_away(auth: KeyAuth, clock: Clock) -> None:
    clock.now += 61.0
    refusals = []
    for _ in range(30):
        with pytest.raises((StoreUnavailable, RateLimited)) as refused:
            auth.admit(header("guess"), "stranger")
        refusals.append(refused.type)
    assert refusals.count(StoreUnavailable) == 20


def test_who_is_refused_by_a_rate_is_told_to_the_store_soon(auth: KeyAuth) -> None:
    told = []
    auth.on_limited = lambda: told.append(True)
    auth.follow({"ci": key("ci", burst=1, rate_per_s=0.1)})
    auth.admit(header("ci"), "a")
    with pytest.raises(RateLimited):
        auth.admit(header("ci"), "a")
    assert told
    assert [name for name, bucket in auth.buckets().items() if bucket.is_used] == ["ci"]
