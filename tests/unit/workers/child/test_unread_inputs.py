"""Inputs whose files take long: a batch does not wait for them, and their jobs find them when they come again (D150)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest

from penstock.handlers.contract import Failure
from penstock.workers.child import input_urls
from penstock.workers.child.input_urls import GRACE_S, IN_ALL, OF_OWNER, UrlFetcher
from penstock.workers.ipc.frames import INPUT_READING_CODE, Item, JobFacts
from tests.eventually import eventually

FAST = b'"https://fast"'


class Hosts:
    """Reads inputs as a host gives them: at once, or when the test says so."""

    def __init__(self) -> None:
        self.asked = Counter[bytes]()
        self.answer = threading.Event()

    def read(self, item: Item) -> Any:
        self.asked[item.data] += 1
        if item.data.startswith(b'"http') and item.data != FAST:
            self.answer.wait(60.0)
        return item.data


def slow(number: int, owner: str = "slow", *, attempt: int = 1) -> Item:
    return Item("application/json", b'"http://slow/%d"' % number, facts=JobFacts(f"{owner}-{number}", attempt, owner=owner))


def fast(number: int, owner: str) -> Item:
    return Item("application/json", FAST, facts=JobFacts(f"{owner}-{number}", owner=owner))


def is_unread(value: Any) -> bool:
    return isinstance(value, Failure) and value.code == INPUT_READING_CODE


@pytest.fixture
def hosts() -> Any:
    hosts = Hosts()
    yield hosts
    hosts.answer.set()


def test_a_job_that_comes_again_finds_what_was_read_since_and_it_was_read_once(hosts: Hosts) -> None:
    fetcher, plain = UrlFetcher([], 30.0), Item("application/json", b"1", facts=JobFacts("p"))
    first, found, other = fetcher.read_all(hosts.read, [slow(1), fast(1, "b"), plain])
    assert (is_unread(first), found, other) == (True, FAST, b"1")
    assert is_unread(fetcher.read_all(hosts.read, [slow(1)])[0])
    hosts.answer.set()
    eventually(lambda: fetcher.read_all(hosts.read, [slow(1)]) == [slow(1).data])
    assert hosts.asked[slow(1).data] == 1


def test_who_has_files_that_took_longer_is_not_awaited_again(hosts: Hosts) -> None:
    fetcher, took = UrlFetcher([], 30.0), list[float]()
    fetcher.read_all(hosts.read, [slow(0)])
    for number in range(1, 20):
        began_at = time.monotonic()
        assert is_unread(fetcher.read_all(hosts.read, [slow(number)])[0])
        took.append(time.monotonic() - began_at)
    assert min(took) < GRACE_S / 2, took


def test_an_owner_has_its_places_and_others_have_theirs(hosts: Hosts) -> None:
    fetcher = UrlFetcher([], 30.0)
    assert all(map(is_unread, fetcher.read_all(hosts.read, [slow(number) for number in range(1_000)])))
    assert hosts.asked.total() == OF_OWNER
    assert eventually(lambda: fetcher.read_all(hosts.read, [slow(1), fast(1, "b")])[1]) == FAST


def test_all_owners_together_have_places_too(hosts: Hosts) -> None:
    fetcher = UrlFetcher([], 30.0)
    fetcher.read_all(hosts.read, [slow(number, f"owner {number}") for number in range(2 * IN_ALL)])
    assert hosts.asked.total() == IN_ALL


def test_a_thread_that_outlives_its_time_fails_its_job_and_keeps_its_place(hosts: Hosts) -> None:
    """The look-up of a name cannot be stopped."""
    fetcher = UrlFetcher([], 0.01)
    for attempt in range(OF_OWNER):
        failure = eventually(partial(failed, fetcher, hosts, slow(1, attempt=attempt)))
        assert (failure.code, failure.retryable) == ("input_url_failed", True)
    assert is_unread(fetcher.read_all(hosts.read, [slow(2)])[0])
    assert hosts.asked[slow(2).data] == 0


def failed(fetcher: UrlFetcher, hosts: Hosts, item: Item) -> Any:
    [value] = fetcher.read_all(hosts.read, [item])
    return None if is_unread(value) else value


def test_an_input_that_no_job_comes_for_is_forgotten(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_urls, "_KEPT_S", 0.0)
    fetcher = UrlFetcher([], 0.3)
    fetcher.read_all(hosts.read, [slow(number) for number in range(OF_OWNER)])
    hosts.answer.set()
    eventually(lambda: fetcher.read_all(hosts.read, [slow(OF_OWNER)]) == [slow(OF_OWNER).data])
