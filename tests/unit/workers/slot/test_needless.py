from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.errors import StoreUnavailable
from penstock.workers.slot.needless import EVERY_S, NeedlessBlobs


class Asked:
    """A store that is away for the queues in `away`, confirms nothing of those in `lagging`, and all else."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.lagging: set[str] = set()

    def safe_ends(self, queue: str, serials: Sequence[str], *, replicas: int) -> set[str] | None:
        if queue in self.away:
            raise StoreUnavailable("this node is away")
        return None if queue in self.lagging else set(serials)


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path, segments=False)


def stored(blobs: LocalBlobs, number: int) -> tuple[str, str]:
    serial = f"{number:026d}"
    blobs.put(f"{serial}.in", b"x")
    return serial, f"{serial}.in"


def left(blobs: LocalBlobs) -> set[str]:
    return {name for name, _ in blobs.names()}


def test_a_queue_that_cannot_be_asked_holds_up_no_other_and_is_asked_again(blobs: LocalBlobs) -> None:
    store = Asked()
    needless = NeedlessBlobs(blobs, store, replicas=1)
    away, lagging, well = (stored(blobs, number) for number in range(3))
    for queue, blob in (("away", away), ("lagging", lagging), ("well", well)):
        needless.add(queue, [blob])
    store.away, store.lagging = {"away"}, {"lagging"}
    late = time.monotonic() + EVERY_S
    with pytest.raises(StoreUnavailable):
        needless.run_once(late)
    assert left(blobs) == {away[1], lagging[1]}
    store.away, store.lagging = set(), set()
    needless.run_once(late)
    assert left(blobs) == set()


def test_an_answer_that_is_safe_at_once_needs_no_question(blobs: LocalBlobs) -> None:
    store = Asked()
    store.away = {"m"}
    NeedlessBlobs(blobs, store, replicas=None).add("m", [stored(blobs, 1)])
    assert left(blobs) == set()


def test_what_one_look_leaves_goes_with_the_next_ones(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.workers.slot.needless._AT_ONCE", 2)
    needless = NeedlessBlobs(blobs, Asked(), replicas=0)
    needless.add("m", [stored(blobs, number) for number in range(5)])
    sizes = []
    for _ in range(3):
        needless.run_once(time.monotonic() + EVERY_S)
        sizes.append(len(left(blobs)))
    assert sizes == [3, 1, 0]
