"""Which of its queues a slot asks, when it takes an offer back, and what becomes of a queue that it leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from selectors import DefaultSelector
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import Claim, ClaimedJob, ClaimRequest, Message
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.job import Payload, Priority, job_in, new_serial, queues_of
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.in_flight import InFlight
from penstock.workers.slot.claims import Claims
from penstock.workers.slot.context import Observers, SlotContext
from penstock.workers.slot.feeds import in_order
from penstock.workers.slot.known_queue import KnownQueue
from penstock.workers.slot.latency import Latency
from penstock.workers.slot.needless import NeedlessBlobs
from tests.unit.workers.slot.test_settlement import ShakyStore

QUEUES = queues_of("m", 3)


class Queues(ShakyStore):
    """A store with so many jobs in each queue. `asked`, `offers` and `withdrawn` name queues, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.depths: dict[str, int] = {}
        self.asked: list[str] = []
        self.offers: list[str] = []
        self.withdrawn: list[str] = []
        self.gone: set[str] = set()

    def claim(self, request: ClaimRequest) -> Claim:
        if request.queue in self.gone:
            raise StoreUnavailable("gone")
        self.asked.append(request.queue)
        self.offers += [request.queue] if request.offer else []
        depth = self.depths.get(request.queue, 0)
        self.depths[request.queue] = max(0, depth - 1)
        return Claim((claimed(request.queue),), "idle", depth - 1) if depth else Claim()

    def withdraw(self, queue: str, version: str, worker: str) -> bool:
        self.withdrawn.append(queue)
        return True


class Ears:
    """A subscription that hears nothing, and whose link breaks for the queues in `deaf`."""

    def __init__(self, queue: str, deaf: set[str]) -> None:
        self.queue, self.deaf = queue, deaf
        self.ends = os.pipe()

    def fileno(self) -> int:
        return self.ends[0]

    def read(self) -> list[Message]:
        if self.queue in self.deaf:
            raise StoreUnavailable("the link broke")
        return []

    def close(self) -> None:
        for end in self.ends:
            os.close(end)


class Asking:
    """The claims of one slot whose child takes whatever it is given. `names` are those under which it listened, by queue."""

    def __init__(self, folder: Path, queues: list[str]) -> None:
        self.store, self.deaf, self.names = Queues(), set[str](), dict[str, list[str]]()
        context = SlotContext(
            lambda: cast("RedisStore", self.store),
            self.listen,
            LocalBlobs(folder),
            NeedlessBlobs(LocalBlobs(folder), cast("RedisStore", self.store), replicas=None),
            Observers(),
            lease_s=15.0,
            inline_output_bytes=1,
        )
        child: Any = SimpleNamespace(is_taking=True, is_taking_shards=False, in_flight=InFlight())
        spec = ModelSpec("m", "m.py")
        self.claims = Claims(spec, context, DefaultSelector(), Latency(), child, name="w", device="cpu")
        self.follow(queues)

    def listen(self, queue: str, incarnation: str) -> Ears:
        self.names.setdefault(queue, []).append(incarnation)
        return Ears(queue, self.deaf)

    def follow(self, queues: list[str]) -> None:
        self.claims.feeds.wanted = queues
        self.claims.feeds.follow_wanted()

    def turn(self) -> str:
        """One turn of the slot's loop: the queue of the batch that it brought, if it brought one."""
        self.claims.settle_and_claim(is_draining=False)
        found = self.claims.waiting
        return found.pop().queue if found else ""

    def turns(self, count: int) -> list[str]:
        return [self.turn() for _ in range(count)]

    def hear(self, queue: str) -> None:
        feed = next(feed for feed in self.claims.feeds.all if feed.queue == queue)
        self.claims.read_messages(feed, since=0.0)


def claimed(queue: str) -> ClaimedJob:
    return ClaimedJob(job_in(new_serial(), queue), "1:w:n", Payload("x", b"1"), Priority.INTERACTIVE, 0.0, 1e12, 1, 0)


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(tmp_path, QUEUES)
    yield made
    made.claims.close()


def known(queue: str, depth: int, *, home: bool = False, asked_at: float = 0.0) -> Any:
    view = KnownQueue(queue)
    view.depth, view.is_home, view.asked_at = depth, home, asked_at
    return SimpleNamespace(view=view, queue=queue)


def order(claims: int, *feeds: Any) -> list[str]:
    return [feed.queue for feed in in_order(feeds, claims)]


def test_the_queue_at_home_is_asked_first_unless_another_is_twice_as_long() -> None:
    assert order(1, known("m", 5, home=True), known("m:1", 10), known("m:2", 2)) == ["m", "m:1", "m:2"]
    assert order(1, known("m", 5, home=True), known("m:1", 3), known("m:2", 12)) == ["m:2", "m", "m:1"]
    assert order(1, known("m", 0, home=True), known("m:1", 0), known("m:2", 2))[0] == "m:2"


def test_one_claim_in_four_goes_to_the_queue_that_was_asked_the_longest_time_ago() -> None:
    feeds = known("m", 9, home=True, asked_at=3.0), known("m:1", 1, asked_at=2.0), known("m:2", 1, asked_at=1.0)
    assert [order(claims, *feeds)[0] for claims in (4, 5, 6, 7, 8)] == ["m:2", "m", "m", "m", "m:2"]


def test_an_idle_slot_asks_everywhere_once_and_offers_to_take_what_comes_at_home_only(slot: Asking) -> None:
    assert slot.turns(5) == [""] * 5
    assert slot.store.asked == ["m", "m:1", "m:2"]
    assert slot.store.offers == ["m"]
    assert {queue: len(names) for queue, names in slot.names.items()} == {"m": 1, "m:1": 1, "m:2": 1}
    assert len({name for names in slot.names.values() for name in names}) == 3, "a name is that of one queue"


def test_a_queue_that_one_turn_left_out_is_asked_in_the_next_which_comes_at_once(slot: Asking) -> None:
    """Jobs of a second partition once waited for a second, because the slot slept until the poll after its last answer."""
    for _ in QUEUES:
        now = time.monotonic()
        assert slot.claims.due_at(now, is_draining=False) <= now
        slot.turn()
    now = time.monotonic()
    assert slot.claims.due_at(now, is_draining=False) > now, "all were asked: each will wake the slot"
    slot.claims.feeds.all[2].view.on_wake_up()
    assert slot.claims.due_at(now, is_draining=False) <= now


def test_work_is_found_in_every_queue_and_none_starves_behind_the_one_at_home(slot: Asking) -> None:
    slot.store.depths = {"m": 1_000, "m:1": 3, "m:2": 3}
    found = slot.turns(40)
    assert found.count("m:1") == found.count("m:2") == 3
    assert found.count("") == 2, "each was asked once more"


def test_the_slot_steals_from_the_fullest_queue_once_it_has_nothing_at_home(slot: Asking) -> None:
    slot.store.depths = {"m": 0, "m:1": 2, "m:2": 40}
    found = slot.turns(20)
    assert found.count("m:2") > 2 * found.count("m:1") > 0


def test_an_offer_at_home_is_taken_back_once_the_slot_works_for_another_queue(slot: Asking) -> None:
    slot.turns(3)
    slot.store.depths["m:1"] = 1
    slot.claims.feeds.all[1].view.on_wake_up()
    assert slot.turn() == "m:1"
    assert slot.store.withdrawn == []
    slot.turn()
    assert slot.store.withdrawn == ["m"]


def test_a_queue_whose_link_broke_is_given_a_new_name_and_the_others_are_claimed_from_meanwhile(slot: Asking) -> None:
    slot.turns(3)
    slot.claims.waiting.append(Batch((claimed("m:1"),), "idle", "w.2", "n", claimed_at=0.0))
    slot.deaf.add("m:1")
    slot.hear("m:1")
    slot.store.depths = {"m": 1, "m:1": 9}
    slot.claims.feeds.all[0].view.on_wake_up()
    assert slot.claims.feeds.is_unsure
    held = slot.claims.waiting.pop()
    slot.claims._slot_child.in_flight.awaited = lambda: [held]  # type: ignore[method-assign]
    assert slot.turns(3) == ["m", "", ""], "no jobs of a queue in which the store may have granted some already"
    del slot.claims._slot_child.in_flight.awaited
    slot.deaf.clear()
    assert slot.turn() == "m:1"
    assert slot.names["m:1"] == ["w.2", "w.2", "w.4"], "it listens under the old name while it holds jobs under it"
    assert len(slot.names["m"]) == 1


def test_a_claim_whose_answer_was_lost_is_not_made_again_under_the_same_name(slot: Asking) -> None:
    slot.store.gone = {"m"}
    slot.turn()
    slot.store.gone, slot.claims.debts.absence.try_at = set(), 0.0
    slot.turn()
    assert len(slot.names["m"]) == 2
    assert slot.store.asked[:1] == ["m"]


def test_a_queue_that_came_is_claimed_from_and_one_that_went_is_left(slot: Asking) -> None:
    slot.turns(3)
    slot.follow([QUEUES[1], QUEUES[0], "m:3"])
    slot.store.depths = {"m:3": 1, "m:2": 5}
    slot.claims.feeds.all[0].view.on_wake_up()
    slot.turns(4)
    assert slot.store.withdrawn == ["m", "m:1"], "home is elsewhere, and then the slot has work of another queue"
    assert slot.store.offers[-1] == "m:1"
    assert "m:3" in slot.store.asked
    assert [feed.queue for feed in slot.claims.feeds.all] == ["m:1", "m", "m:3"]
    assert slot.store.depths["m:2"] == 5


def test_what_is_leased_from_a_queue_that_went_is_still_renewed_until_it_ended(slot: Asking) -> None:
    slot.turns(3)
    slot.claims.waiting.append(Batch((claimed("m:2"),), "idle", "w.3", "n", claimed_at=0.0))
    slot.follow(QUEUES[:2])
    slot.claims.settle_and_claim(is_draining=False)
    assert [feed.queue for feed in slot.claims.feeds.all if slot.claims.is_holding(feed.queue)] == ["m:2"]
    slot.claims.waiting.clear()
    slot.turn()
    assert [feed.queue for feed in slot.claims.feeds.all] == ["m", "m:1"]
