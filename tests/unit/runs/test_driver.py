"""The driver with a queue in this process: every row is written once and in order, whatever the queue does."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from penstock.backoff import Backoff
from penstock.broker.blobs.files import BlobStore
from penstock.run import FailureLimit, RunCounts
from penstock.runs.driver import Checkpoint, Driver, RunLimits, StopReason, TooManyFailed
from penstock.runs.rows import ResultBatch, RowError
from penstock.runs.shards.shard_queue import ShardQueue, ShardTerms
from penstock.shard import RowFailure, ShardOutcome
from tests.unit.runs.driver_doubles import DictBlobs, FakeQueue, FakeWatch, ListSink, ListSource, Model, ModelDied

ROWS = 3_000


def double(rows: list[Any]) -> ShardOutcome:
    return ShardOutcome([2 * row for row in rows])


class Stage:
    """A driver and its parts; `drive` continues where the last call ended."""

    def __init__(
        self, model: Model = double, rows: Any = range(ROWS), *, seed: int = 1, blobs_away: float = 0.0, **faults: Any
    ) -> None:
        self.source, self.sink, self.blobs = ListSource(rows), ListSink(), DictBlobs(away=blobs_away, seed=seed)
        self.queue = FakeQueue(model, self.blobs, Random(seed), **faults)
        self.checkpoints: list[Checkpoint] = [Checkpoint()]

    def drive(self, watch: FakeWatch | None = None, **limits: Any) -> StopReason:
        last = self.checkpoints[-1]
        self.sink.restore(last.mark)
        driver = Driver(
            self.source,
            self.sink,
            limits=RunLimits(**limits),
            checkpoint=last,
            watch=watch or FakeWatch(),
            commit=self.checkpoints.append,
        )
        terms = ShardTerms("double", "1", self.source.media)
        blobs = cast("BlobStore", self.blobs)
        return driver.drive(ShardQueue(self.queue, blobs, self.queue, terms=terms, inputs=driver.inputs))


def expected(rows: int = ROWS) -> list[tuple[int, Any]]:
    return [(row, 2 * row) for row in range(rows)]


def test_every_row_has_its_output_in_the_order_of_the_input_and_nothing_is_left_behind() -> None:
    stage = Stage()
    assert stage.drive() is StopReason.GO_ON
    assert stage.sink.lines == expected()
    assert stage.checkpoints[-1].counts == RunCounts(done=ROWS)
    assert stage.blobs.blobs == {}


@pytest.mark.parametrize("seed", range(6))
def test_lost_pushes_lost_replies_and_a_full_queue_cost_no_row(seed: int) -> None:
    stage = Stage(seed=seed, lose=0.3, away=0.1, most_open=3)
    assert stage.drive(shard_rows=100, window_rows=1_000) is StopReason.GO_ON
    assert stage.sink.lines == expected()


@pytest.mark.parametrize("seed", range(3))
def test_blobs_that_cannot_be_written_or_read_for_a_while_cost_no_row(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runs.shards.shard_queue._BACKOFF", Backoff(0.0, 0.0))
    stage = Stage(seed=seed, blobs_away=0.3, lose=0.1)
    assert stage.drive(shard_rows=100) is StopReason.GO_ON
    assert stage.sink.lines == expected()
    assert stage.blobs.blobs == {}


@pytest.mark.parametrize("limits", [{"shard_rows": 1, "window_rows": 10}, {"shard_rows": 700}, {"window_rows": 37}])
def test_the_output_does_not_depend_on_how_rows_are_cut(limits: dict[str, Any]) -> None:
    stage = Stage(rows=range(500))
    stage.drive(**limits)
    assert stage.sink.lines == expected(500)


def test_no_more_rows_are_submitted_than_the_window_holds() -> None:
    stage = Stage(rows=range(5_000))
    stage.drive(window_rows=400)
    assert 100 <= stage.queue.most_rows <= 400
    # The driver reads at most a third of the window at a time.
    assert stage.source.most_rows <= 133


def test_rows_that_fail_or_cannot_be_read_have_their_reason_and_their_neighbours_an_output() -> None:
    def picky(rows: list[Any]) -> ShardOutcome:
        failures = [RowFailure(place, "too_long", "x") for place, row in enumerate(rows) if row == 7]
        return ShardOutcome([None if row == 7 else 2 * row for row in rows], failures)

    rows = [RowError("missing_column", "no x") if row == 9 else row for row in range(100)]
    stage = Stage(picky, rows)
    assert stage.drive() is StopReason.GO_ON
    assert stage.sink.lines == [(row, {7: "too_long", 9: "missing_column"}.get(row, 2 * row)) for row in range(100)]
    assert stage.checkpoints[-1].counts == RunCounts(done=98, failed=2)


def test_a_row_that_kills_its_process_is_found_by_halving_and_fails_alone() -> None:
    def fragile(rows: list[Any]) -> ShardOutcome:
        if 33 in rows:
            raise ModelDied("signal 11")
        return double(rows)

    stage = Stage(fragile, range(128))
    stage.drive(shard_rows=64)
    assert stage.sink.lines == [(row, "poison" if row == 33 else 2 * row) for row in range(128)]


@pytest.mark.parametrize(("good_at", "verdict"), [(2, 14), (3, 14), (4, "busy")])
def test_a_row_that_may_work_another_time_gets_three_tries(good_at: int, verdict: Any) -> None:
    tries: list[int] = []

    def moody(rows: list[Any]) -> ShardOutcome:
        if 7 not in rows:
            return double(rows)
        tries.append(1)
        if len(tries) >= good_at:
            return double(rows)
        place = rows.index(7)
        return ShardOutcome(
            [None if row == 7 else 2 * row for row in rows], [RowFailure(place, "busy", "later", retryable=True)]
        )

    stage = Stage(moody, range(50))
    stage.drive()
    assert stage.sink.lines == [(row, verdict if row == 7 else 2 * row) for row in range(50)]


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_was_interrupted_goes_on_without_a_row_missing_or_twice(seed: int) -> None:
    random = Random(seed)
    stage = Stage(seed=seed, lose=0.1)
    watch = FakeWatch(stop_at=random.randrange(1, ROWS - 600))
    assert stage.drive(watch, shard_rows=50) is StopReason.INTERRUPT
    # This line stands for output that was not committed before a kill -9; a restore removes it.
    stage.sink.lines.append((10**9, "torn"))
    assert stage.drive(shard_rows=random.randrange(1, 90)) is StopReason.GO_ON
    assert stage.sink.lines == expected()
    assert stage.checkpoints[-1].counts == RunCounts(done=ROWS)


def test_a_cancelled_run_takes_its_open_shards_back_and_keeps_what_was_written() -> None:
    stage = Stage(keeps=1)
    assert stage.drive(FakeWatch(stop_at=200, reason=StopReason.CANCEL), shard_rows=50) is StopReason.CANCEL
    written = len(stage.sink.lines)
    assert stage.sink.lines == expected(ROWS)[:written]
    assert stage.queue.jobs == {}
    assert stage.queue.cancelled
    assert stage.blobs.blobs == {}
    assert stage.checkpoints[-1].mark == {"lines": written}


def test_a_stopped_run_that_publishes_what_it_has_shows_the_rows_of_every_shard_that_ran() -> None:
    # Regression: a cancelled batch dropped the rows of shards that ran, and could show none at all.
    stage = Stage(rows=range(800), leased=2)
    told = {StopReason.CANCEL: RowError("cancelled", "before this line")}

    class Watch(FakeWatch):
        def stop_reason(self) -> StopReason:
            reason = super().stop_reason()
            # Until it is stopped, three shards wait; then the worker runs those that it has claimed.
            stage.queue.keeps = 0 if reason else 3
            return reason

    watch = Watch(stop_at=1, reason=StopReason.CANCEL, slots=4)
    assert stage.drive(watch, shard_rows=50, not_reached=told) is StopReason.CANCEL
    rows, results = [row for row, _ in stage.sink.lines], [result for _, result in stage.sink.lines]
    assert rows == list(range(len(rows)))
    ran = [row for row, result in zip(rows, results, strict=True) if result == 2 * row]
    assert len(ran) >= watch.seen[-1].counts.done + 2 * 50
    assert {result for row, result in zip(rows, results, strict=True) if row not in ran} <= {"cancelled"}
    assert stage.checkpoints[-1].counts == RunCounts(done=len(ran)), "rows that were not reached have not failed"
    assert (stage.queue.jobs, stage.blobs.blobs) == ({}, {})


def test_a_drive_whose_run_was_taken_over_commits_nothing_more() -> None:
    stage = Stage()
    assert stage.drive(FakeWatch(stop_at=200, reason=StopReason.LOST), shard_rows=50) is StopReason.LOST
    # The batch of eight shards that held row 200 is the last one committed.
    assert stage.checkpoints[-1].counts.done <= 400


class WatchedSink(ListSink):
    """A sink that notes after which look at the lease each write came."""

    def __init__(self, watch: FakeWatch) -> None:
        super().__init__()
        self._watch = watch
        self.looks: list[int] = []

    def append(self, results: ResultBatch) -> None:
        self.looks.append(self._watch.looks)
        super().append(results)

    def commit(self) -> dict[str, Any]:
        self.looks.append(self._watch.looks)
        return super().commit()


@pytest.mark.parametrize("first", range(1, 40, 7))
def test_nothing_is_written_while_the_lease_has_lapsed_and_everything_once_it_is_granted_again(first: int) -> None:
    stage, watch = Stage(), FakeWatch()
    watch.lapses = range(first, first + 20)
    stage.sink = sink = WatchedSink(watch)
    assert stage.drive(watch, shard_rows=50) is StopReason.GO_ON
    assert stage.sink.lines == expected()
    assert stage.checkpoints[-1].counts == RunCounts(done=ROWS)
    assert not [look for look in sink.looks if look in watch.lapses]


def test_a_drive_that_is_interrupted_after_its_lease_lapsed_commits_nothing() -> None:
    class LapsingSink(ListSink):
        def append(self, results: ResultBatch) -> None:
            super().append(results)
            watch.lapses = range(1_000_000)

    stage, watch = Stage(), FakeWatch(stop_at=1)
    stage.sink = LapsingSink()
    assert stage.drive(watch, shard_rows=50) is StopReason.INTERRUPT
    assert len(stage.checkpoints) == 1


def test_too_many_failed_rows_stop_the_run_and_keep_what_is_there() -> None:
    def hopeless(rows: list[Any]) -> ShardOutcome:
        return ShardOutcome([None] * len(rows), [RowFailure(place, "wrong", "x") for place in range(len(rows))])

    stage = Stage(hopeless)
    with pytest.raises(TooManyFailed, match="the limit is 100 rows; the first was row 0: wrong: x"):
        stage.drive(max_failed=FailureLimit.parse(100), shard_rows=30)
    # The run writes at most the batch of eight shards in which the limit was passed.
    assert 100 < len(stage.sink.lines) <= 100 + 8 * 30
    assert stage.checkpoints[-1].counts.failed == len(stage.sink.lines)


def failing_every(nth: int) -> Model:
    def run(rows: list[Any]) -> ShardOutcome:
        failures = [RowFailure(place, "wrong", "x") for place, row in enumerate(rows) if row % nth == 0]
        return ShardOutcome([None if row % nth == 0 else 2 * row for row in rows], failures)

    return run


@pytest.mark.parametrize(("rows", "nth", "fails"), [(100, 1, False), (200, 9, True), (200, 10, False), (3_000, 11, False)])
def test_by_default_a_tenth_of_the_rows_may_fail_in_runs_of_more_than_a_hundred(rows: int, nth: int, fails: bool) -> None:
    stage = Stage(failing_every(nth), range(rows))
    if not fails:
        assert stage.drive(max_failed=FailureLimit.parse(None)) is StopReason.GO_ON
        return
    with pytest.raises(TooManyFailed, match="and the limit is 10% of the rows"):
        stage.drive(max_failed=FailureLimit.parse(None))
    # All rows are written: only the number of all rows decides. With another limit the run goes on, and is complete.
    assert len(stage.sink.lines) == rows
    assert stage.drive(max_failed=FailureLimit.parse("100%")) is StopReason.GO_ON
    assert len(stage.sink.lines) == rows


def test_a_hopeless_run_stops_long_before_its_last_row() -> None:
    stage = Stage(failing_every(1), range(3_000))
    with pytest.raises(TooManyFailed):
        stage.drive(max_failed=FailureLimit.parse(None), shard_rows=30)
    assert len(stage.sink.lines) <= 100 + 8 * 30


def test_a_worker_that_returns_the_wrong_number_of_outputs_fails_rows_and_not_the_run() -> None:
    stage = Stage(lambda rows: ShardOutcome([*rows, 0]), range(10))
    assert stage.drive() is StopReason.GO_ON
    assert stage.sink.lines == [(row, "outcome_count") for row in range(10)]


def test_an_empty_input_is_done_at_once() -> None:
    stage = Stage(rows=[])
    assert stage.drive() is StopReason.GO_ON
    assert stage.sink.lines == []


def test_a_source_that_cannot_be_read_ends_the_drive_with_its_error() -> None:
    class Torn(ListSource):
        def read(self, after: Any, *, rows: int, size_bytes: int) -> Any:
            if after:
                raise OSError("input/output error")
            return super().read(after, rows=rows, size_bytes=size_bytes)

    stage = Stage()
    stage.source = Torn(range(ROWS))
    with pytest.raises(OSError, match="input/output error"):
        stage.drive()


def test_while_no_worker_serves_the_model_the_progress_says_so() -> None:
    watch = FakeWatch(slots=0)
    Stage().drive(watch)
    assert any("no worker serves" in progress.note for progress in watch.seen)
