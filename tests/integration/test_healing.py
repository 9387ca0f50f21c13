"""A crash that left thousands of records without a place in line, and the sweepers that give it back while claims go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import Repair, SweepReport
from penstock.broker.store.sync import RedisStore
from penstock.workers.fleet.sweeper import Sweeper
from penstock.workers.slot.needless import NeedlessBlobs
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue

RECORDS = 3_500


class Pages:
    """What the sweepers' pages found. The store's pace is real time: each next page is let through by `next_page`."""

    def __init__(self, next_page: Callable[[], object]) -> None:
        self.found: list[Repair] = []
        self._next_page = next_page

    def swept(self, report: SweepReport) -> None: ...

    def on_repaired(self, found: Repair) -> None:
        self.found.append(found)
        self._next_page()


@pytest.fixture
def client(fresh_redis: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(fresh_redis) as client:
        yield client


@pytest.fixture
def queue(fresh_redis: str, client: redis.Redis) -> Iterator[ModelQueue]:
    store = RedisStore(fresh_redis)
    yield ModelQueue(store, "m", RedisDump(client, "m").dump)
    store.close()


@pytest.fixture
def pages(client: redis.Redis) -> Pages:
    return Pages(lambda: client.delete("ps:{m}:reconciled"))


@pytest.fixture
def sweepers(queue: ModelQueue, pages: Pages, tmp_path: Path) -> list[Sweeper]:
    def made(name: str) -> Sweeper:
        assert isinstance(queue.store, RedisStore)
        blobs = LocalBlobs(tmp_path)
        needless = NeedlessBlobs(blobs, queue.store, replicas=0)
        paces: dict[str, Any] = {"lease_s": 60.0, "beat_s": 20.0, "sweep_s": 0.0}
        return Sweeper(queue.store, blobs, {"m"}, name=name, needless=needless, observer=pages, **paces)

    return [made("w1"), made("w2")]


def submit_and_lose_places(queue: ModelQueue, client: redis.Redis, *, first: int = 0) -> None:
    """The places in line of all jobs but the `first` ones are lost."""
    for _ in range(RECORDS // 500):
        queue.store.submit([queue.new() for _ in range(500)])
    line = "ps:{m}:ready:1"
    assert client.zremrangebyrank(line, first, -1) == RECORDS - first


def heal(sweepers: Sequence[Sweeper], *, meanwhile: Callable[[], object] = lambda: None) -> int:
    """Call the first sweeper as soon as it asks to be called; the number of calls. The others stand by."""
    now, calls = 0.0, 1
    while (soon := sweepers[0].run_once(now)) is not None:
        meanwhile()
        now, calls = now + soon, calls + 1
    return calls


def test_all_records_are_healed_in_one_go_and_then_looked_at_once_more(
    queue: ModelQueue, client: redis.Redis, sweepers: list[Sweeper], pages: Pages
) -> None:
    # Regression: a page every half minute.
    submit_and_lose_places(queue, client)
    heal(sweepers)
    assert [found.orphans for found in pages.found] == [1_000, 1_000, 1_000, 500, 0, 0, 0, 0]
    assert max(found.scanned for found in pages.found) == 1_000
    check_invariants(queue.dump())
    assert queue.store.stats("m").ready[0] == RECORDS
    assert not client.exists("ps:{m}:healing")


def test_a_claim_between_two_pages_gets_jobs(
    queue: ModelQueue, client: redis.Redis, sweepers: list[Sweeper], pages: Pages
) -> None:
    submit_and_lose_places(queue, client, first=50)
    claimed: list[int] = []
    heal(sweepers, meanwhile=lambda: claimed.append(len(queue.claim(f"w.{len(claimed)}", limit=10).jobs)))
    assert len(claimed) == len(pages.found) - 1
    assert claimed == [10] * len(claimed)


def test_records_before_the_page_that_was_due_are_healed_too(
    queue: ModelQueue, client: redis.Redis, sweepers: list[Sweeper], pages: Pages
) -> None:
    submit_and_lose_places(queue, client, first=RECORDS)
    heal(sweepers)
    assert len(pages.found) == 1, "nothing is wrong, so the next page has half a minute's time"
    client.delete("ps:{m}:ready:1")
    heal(sweepers[1:])
    assert sum(found.orphans for found in pages.found) == RECORDS
    check_invariants(queue.dump())


def test_the_lists_of_lost_records_are_read_without_a_pause(
    queue: ModelQueue, client: redis.Redis, sweepers: list[Sweeper]
) -> None:
    queue.store.submit([queue.new(owner="a", tags=("x",)) for _ in range(500)])
    queue.store.submit([queue.new(owner="b") for _ in range(500)])
    client.delete(*client.scan_iter("ps:{m}:job:*", count=1000))
    heal(sweepers)
    assert queue.store.stats("m").open == {}
    assert not client.exists("ps:{m}:index:a", "ps:{m}:tagged:a", "ps:{m}:index:b", "ps:{m}:owners", "ps:{m}:strays")


def test_two_sweepers_do_not_heal_one_queue_at_once(
    queue: ModelQueue, client: redis.Redis, sweepers: list[Sweeper], pages: Pages
) -> None:
    submit_and_lose_places(queue, client)
    pages._next_page = lambda: None
    assert sweepers[0].run_once(0.0) is not None
    # The store lets a page through only after its pace.
    client.pexpire("ps:{m}:reconciled", 600_000)
    assert sweepers[1].run_once(0.0) is None
    assert [found.orphans for found in pages.found] == [1_000, 0]
