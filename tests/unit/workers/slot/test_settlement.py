from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import (
    BatchStamp,
    Claim,
    ClaimedJob,
    ClaimRequest,
    Ending,
    GiveBack,
    NewJob,
    Report,
    Reported,
    Settled,
    Submitted,
)
from penstock.broker.store.ops import Operation, Reply
from penstock.broker.store.registry import KeptTimes
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from penstock.job import JobId, JobState, Payload, Priority
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Batch, Release, blob_name
from penstock.workers.slot.context import Observer, Observers, SlotContext
from penstock.workers.slot.needless import EVERY_S, NeedlessBlobs
from penstock.workers.slot.reports import Said
from penstock.workers.slot.settlement import Absence, Settlements

ID = JobId("0" * 26, "m")
INPUT = Payload("application/json", b"1")
REQUEST = ClaimRequest("m", "1", "w", "n", limit=8)


class ShakyStore:
    """A store that gives `answer` to every settlement, fails while `away` is set, and records the calls it took in `calls`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.details: list[str] = []
        self.away = False
        self.answer = Settled.OK
        self.safe: set[str] = set()
        self.on_finish: Callable[[], object] = lambda: None

    def _take(self, name: str, what: Any) -> None:
        if self.away:
            raise StoreUnavailable("gone")
        self.calls.append((name, what))

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = 0) -> list[Submitted]:
        self._take("submit", jobs)
        return []

    def claim(self, request: ClaimRequest) -> Claim:
        self._take("claim", request)
        return Claim()

    def withdraw(self, queue: str, version: str, worker: str) -> bool:
        self._take("withdraw", worker)
        return True

    def learned_times(self, model: str) -> dict[str, KeptTimes]:
        self._take("learned_times", model)
        return {}

    def finish_all(
        self, ended: Sequence[tuple[Sequence[Ending], str, BatchStamp]], request: ClaimRequest | None
    ) -> tuple[list[list[Settled]], Claim | None]:
        self._take("finish_all", [endings for endings, _, _ in ended])
        self.on_finish()
        return [[self.answer for _ in endings] for endings, _, _ in ended], Claim() if request else None

    def report(self, reports: Sequence[Report]) -> list[Reported]:
        self._take("report", reports)
        return [Reported.CANCELLED for _ in reports]

    def retry(
        self, items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str, traceback: str = ""
    ) -> list[Settled]:
        self._take("retry", items)
        return [self.answer for _ in items]

    def release(self, items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = "") -> list[Settled]:
        self._take("release", items)
        self.details.append(detail)
        return [self.answer for _ in items]

    def run(self, operation: Operation[Reply]) -> Reply:
        [reply] = self.run_all([operation])
        return reply

    def run_all(self, operations: Sequence[Operation[Reply]]) -> list[Reply]:
        self._take("run", [operation.function for operation in operations])
        return [operation.decode(b"1") for operation in operations]

    def safe_ends(self, queue: str, serials: Sequence[str], *, replicas: int) -> set[str] | None:
        return self.safe

    def close(self) -> None: ...


def ending(data: bytes = b"1") -> Ending:
    return Ending(ID, "1:w:n", JobState.SUCCEEDED, Payload("application/json", data))


def ended(*endings: Ending, input: Payload = INPUT) -> Batch:
    """Return a batch that ran, with one job per ending."""
    endings = endings or (ending(),)
    jobs = tuple(ClaimedJob(ID, end.token, input, Priority.INTERACTIVE, 0.0, 10.0, 1, 0) for end in endings)
    return Batch(jobs, "full", "w", "n", claimed_at=0.0, endings=endings)


@pytest.fixture
def store() -> ShakyStore:
    return ShakyStore()


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path)


def settlements_of(
    store: ShakyStore, blobs: LocalBlobs, observers: Observers, needless: NeedlessBlobs | None = None
) -> Settlements:
    def listen(queue: str, incarnation: str) -> Any:
        raise AssertionError((queue, incarnation))

    at = cast("RedisStore", store)
    needless = needless or NeedlessBlobs(blobs, at, replicas=None)
    context = SlotContext(lambda: at, listen, blobs, needless, observers, lease_s=15.0, inline_output_bytes=65_536)
    return Settlements(ModelSpec("m", "m.py"), at, context)


@pytest.fixture
def settlements(store: ShakyStore, blobs: LocalBlobs) -> Settlements:
    return settlements_of(store, blobs, Observers())


def names(store: ShakyStore) -> list[str]:
    return [name for name, _ in store.calls]


def test_a_finished_batch_is_settled_and_the_next_one_taken_in_one_call(settlements: Settlements, store: ShakyStore) -> None:
    settlements.owe(ended())
    assert settlements.settle_and_claim(REQUEST) is not None
    assert names(store) == ["finish_all"]
    assert not settlements.has_debts


def test_a_blob_that_cannot_be_deleted_costs_the_next_batch_nothing(
    settlements: Settlements, store: ShakyStore, blobs: LocalBlobs
) -> None:
    """Regression: the fault came between the claim and its batch, so that the jobs just claimed were lost with their lease."""
    batch = ended(ending(b"x" * 70_000))
    [name] = [blob_name(end) for end in batch.endings]
    blobs.put(name, b"")
    path = blobs.local_path(name)
    assert path is not None

    def replace_by_folder() -> None:
        path.unlink()
        path.mkdir()

    store.on_finish = replace_by_folder
    store.answer = Settled.STALE
    settlements.owe(batch)
    assert settlements.settle_and_claim(REQUEST) == Claim()
    assert path.exists()
    assert not settlements.has_debts


def test_everything_owed_is_settled_before_more_is_taken(settlements: Settlements, store: ShakyStore) -> None:
    settlements.owe(Release((GiveBack(ID, "1:w:n"),), "w", ReleaseReason.CRASHED))
    settlements.owe(ended())
    settlements.settle_and_claim(REQUEST)
    assert names(store) == ["release", "finish_all"]


def test_batches_that_ended_since_the_last_call_are_settled_in_one_with_the_claim(
    settlements: Settlements, store: ShakyStore, blobs: LocalBlobs
) -> None:
    large = ending(b"x" * 100_000)
    for one in (ending(), large, ending()):
        settlements.owe(ended(one))
    store.away = True
    with pytest.raises(StoreUnavailable):
        settlements.settle_and_claim(REQUEST)
    store.away = False
    assert settlements.settle_and_claim(REQUEST) == Claim()
    [(name, settled)] = store.calls
    assert name == "finish_all"
    assert [end.output and bool(end.output.blob) for [end] in settled] == [False, True, False]
    assert len(list(blobs.names())) == 1
    assert not settlements.has_debts


def test_no_call_settles_more_batches_than_a_bound(settlements: Settlements, store: ShakyStore) -> None:
    for _ in range(130):
        settlements.owe(ended())
    settlements.owe(Release((GiveBack(ID, "1:w:n"),), "w", ReleaseReason.CRASHED))
    settlements.settle_and_claim(REQUEST)
    assert [len(what) for name, what in store.calls if name == "finish_all"] == [64, 64, 2]
    assert names(store)[3:] == ["release", "claim"]


def test_jobs_that_go_back_for_one_reason_do_so_in_one_call(settlements: Settlements, store: ShakyStore) -> None:
    def back(reason: ReleaseReason) -> Release:
        return Release((GiveBack(ID, "1:w:n"),), "w", reason)

    for reason in (ReleaseReason.CRASHED, ReleaseReason.CRASHED, ReleaseReason.DRAIN):
        settlements.owe(back(reason))
    settlements.settle_and_claim(None)
    assert [len(what) for _, what in store.calls] == [2, 1]


def test_what_an_item_said_reaches_the_store_before_its_end_and_a_cancel_comes_back(
    settlements: Settlements, store: ShakyStore
) -> None:
    settlements.owe(Said((Report(ID, "1:w:n", 0.5, "half"),)))
    settlements.owe(ended())
    settlements.settle_and_claim(REQUEST)
    assert names(store) == ["report", "finish_all"]
    assert list(settlements.unwanted) == [ID]


def test_the_store_learns_how_the_process_of_a_batch_died(settlements: Settlements, store: ShakyStore) -> None:
    # Regression: users read "the process running it died 2 times" and had to find the cause in the log of the worker.
    settlements.owe(Release((GiveBack(ID, "1:w:n"),), "w", ReleaseReason.CRASHED, "ended by SIGSEGV"))
    settlements.settle_and_claim(None)
    assert store.details == ["ended by SIGSEGV"]


def test_nothing_owed_is_forgotten_while_the_store_is_away(settlements: Settlements, store: ShakyStore) -> None:
    settlements.owe(ended())
    store.away = True
    for request in (REQUEST, None):
        with pytest.raises(StoreUnavailable):
            settlements.settle_and_claim(request)
    assert settlements.has_debts
    store.away = False
    settlements.settle_and_claim(None)
    assert names(store) == ["finish_all"]
    assert not settlements.has_debts


def test_a_large_output_lies_in_the_blob_store_before_its_job_is_finished(
    settlements: Settlements, store: ShakyStore, blobs: LocalBlobs
) -> None:
    large = ending(b"x" * 100_000)
    settlements.owe(ended(large, ending()))
    settlements.settle_and_claim(None)
    [(_, [(first, second)])] = store.calls
    assert first.output is not None
    assert first.output.data == b""
    assert first.output.blob.startswith(f"{ID.serial}.")
    assert blobs.get(first.output.blob) == b"x" * 100_000
    assert second.output == Payload("application/json", b"1")


@pytest.mark.parametrize("answer", [Settled.STALE, Settled.CANCELLED])
def test_the_large_output_of_a_job_that_does_not_want_it_is_removed(
    settlements: Settlements, store: ShakyStore, blobs: LocalBlobs, answer: Settled
) -> None:
    store.answer = answer
    large = ending(b"x" * 100_000)
    settlements.owe(ended(large))
    settlements.settle_and_claim(None)
    assert list(blobs.names()) == []


@pytest.mark.parametrize(
    ("state", "answer", "deleted"),
    [
        (JobState.SUCCEEDED, Settled.OK, True),
        (JobState.SUCCEEDED, Settled.ALREADY, True),
        (JobState.SUCCEEDED, Settled.CANCELLED, True),
        (JobState.SUCCEEDED, Settled.STALE, False),
        (JobState.FAILED, Settled.OK, False),
    ],
)
def test_the_large_input_goes_with_success_and_stays_for_whoever_may_still_need_it(
    settlements: Settlements, store: ShakyStore, blobs: LocalBlobs, state: JobState, answer: Settled, deleted: bool
) -> None:
    """Regression: inputs of succeeded jobs stayed on disk until their retention ended: 137 MB a second at full load."""
    store.answer = answer
    name = f"{ID.serial}.in"
    blobs.put(name, b"x" * 100_000)
    settlements.owe(ended(Ending(ID, "t", state), input=Payload("text/plain", blob=name)))
    settlements.settle_and_claim(None)
    assert (blobs.local_path(name) is None) is deleted


@pytest.mark.parametrize("is_safe", [True, False])
def test_input_and_stages_outputs_wait_until_the_store_says_that_the_end_is_safe(
    store: ShakyStore, blobs: LocalBlobs, *, is_safe: bool
) -> None:
    """Regression: both were deleted when `finish` was answered, and missing when a failover undid the end."""
    names = [f"{ID.serial}.in", f"{'1' * 26}.abc.out"]
    blobs.put_all([(name, b"x") for name in names])
    store.safe = {ID.serial} if is_safe else set()
    needless = NeedlessBlobs(blobs, cast("RedisStore", store), replicas=0)
    settlements = settlements_of(store, blobs, Observers(), needless)
    settlements.owe(replace(ended(input=Payload("image/png", blob=names[0])), needless=(names[1],)))
    settlements.settle_and_claim(None)
    needless.run_once(time.monotonic())
    assert all(map(blobs.local_path, names)), "no end is asked about at once"
    needless.run_once(time.monotonic() + EVERY_S)
    assert [blobs.local_path(name) is None for name in names] == [is_safe, is_safe]


def test_a_store_that_is_away_is_tried_ever_more_seldom_up_to_two_seconds_until_it_answers() -> None:
    absence = Absence()
    assert [absence.on_failure(100.0) for _ in range(12)] == [True] + [False] * 11
    assert 101.0 <= absence.try_at <= 102.0
    assert absence.on_answer()
    assert not absence.on_answer()
    assert absence.on_failure(200.0)
    assert 200.05 <= absence.try_at <= 200.1


class Follower(Observer):
    """An observer that notes whose end it hears of."""

    def __init__(self, *, every: bool) -> None:
        self.every = every
        self.heard: list[JobState] = []

    @property
    def wants_every_batch(self) -> bool:
        return self.every

    def on_settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        self.heard += [end.state for end in batch.endings]


def test_who_does_not_want_every_batch_hears_of_those_with_a_failure(store: ShakyStore, blobs: LocalBlobs) -> None:
    log, metrics, feed = Follower(every=False), Follower(every=True), Follower(every=False)
    observers = Observers(log, metrics, feed)
    settlements = settlements_of(store, blobs, observers)
    failure = Ending(ID, "1:w:n", JobState.FAILED)
    settlements.owe(ended())
    settlements.owe(ended(ending(), failure))
    settlements.settle_and_claim(None)
    feed.every = True
    observers.ask()
    settlements.owe(ended())
    settlements.settle_and_claim(None)
    mixed = [JobState.SUCCEEDED, JobState.FAILED]
    assert log.heard == mixed
    assert metrics.heard == [JobState.SUCCEEDED, *mixed, JobState.SUCCEEDED]
    assert feed.heard == [*mixed, JobState.SUCCEEDED]
    assert settlements.ended == 4
