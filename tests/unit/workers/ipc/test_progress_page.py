from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.workers.ipc.progress_page import Lane, ProgressPage, ShardProgress, Stage


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    made = ProgressPage.create()
    yield made
    made.close()


def test_a_stage_is_read_with_its_moment(page: ProgressPage) -> None:
    page.mark(3, Stage.RUNNING, 12.5)
    assert page.stage(3) == (Stage.RUNNING, 12.5)


def test_a_batch_that_the_child_has_not_seen_is_unseen(page: ProgressPage) -> None:
    page.mark(3, Stage.RUNNING, 12.5)
    assert page.stage(7)[0] is Stage.UNSEEN
    assert page.stage(4)[0] is Stage.UNSEEN


def test_only_a_batch_that_has_not_begun_can_be_recalled(page: ProgressPage) -> None:
    page.mark(1, Stage.RUNNING, 1.0)
    page.mark(2, Stage.DECODED, 1.0)
    assert not page.recall(1)
    assert page.recall(2)
    assert page.is_recalled(2)
    assert not page.is_recalled(3)


def test_a_crash_is_blamed_on_batches_that_the_handler_was_touching() -> None:
    assert [stage for stage in Stage if stage.is_touched] == [Stage.DECODING, Stage.RUNNING, Stage.ENCODING]


@pytest.fixture
def shards(page: ProgressPage) -> ShardProgress:
    return page.shards


def test_progress_belongs_to_the_shard_that_made_it(shards: ShardProgress) -> None:
    assert shards.begin(1)
    shards.advance(1, 256)
    assert (shards.rows(1), shards.rows(2), shards.rows(5)) == (256, 0, 0)


def test_only_a_shard_that_has_not_begun_is_recalled_as_waiting(shards: ShardProgress) -> None:
    shards.begin(1)
    assert not shards.recall_waiting(1)
    assert not shards.is_recalled(1)
    assert shards.recall_waiting(2)
    assert not shards.begin(2)


def test_a_running_shard_can_be_left_too_and_its_place_is_free_again(shards: ShardProgress) -> None:
    shards.begin(1)
    assert shards.recall(1)
    assert shards.is_recalled(1)
    assert shards.begin(5)


def test_each_lane_shows_its_shard_and_the_oldest_is_found(shards: ShardProgress) -> None:
    assert shards.touched([1, 2]) == set()
    assert shards.oldest([1, 2]) == (0, float("inf"))
    shards.enter(Lane.COMPLETING, 1, 10.0)
    shards.enter(Lane.RUNNING, 2, 9.0)
    assert shards.touched([1, 2]) == {1, 2}
    assert shards.oldest([1, 2]) == (2, 9.0)
    shards.leave(Lane.RUNNING)
    assert shards.touched([1, 2]) == {1}


def test_batches_and_shards_do_not_touch_each_others_entries(page: ProgressPage) -> None:
    for number in range(1, 9):
        page.mark(number, Stage.RUNNING, float(number))
        page.shards.begin(number)
        page.shards.advance(number, 100 * number)
        page.shards.recall(number)
    for lane in Lane:
        page.shards.enter(lane, 7, 1.0)
    assert [page.stage(number)[1] for number in range(5, 9)] == [5.0, 6.0, 7.0, 8.0]
    assert [page.shards.rows(number) for number in range(5, 9)] == [500, 600, 700, 800]
    assert not page.is_recalled(1)


_WRITER = """
import itertools, sys
from penstock.workers.ipc.progress_page import Lane, ProgressPage, Stage
page = ProgressPage(int(sys.argv[1]))
for turn in itertools.count():
    shard, batch = turn % 2 + 7, turn % 2 * 4 + 3
    page.shards.enter(Lane.RUNNING, shard, 1000.0 + shard)
    page.shards.advance(7, turn * 0x010101)
    page.shards.leave(Lane.RUNNING)
    page.mark(batch, Stage.RUNNING, 1000.0 + batch)
"""


def test_no_reader_ever_sees_half_an_entry_while_another_process_writes(page: ProgressPage) -> None:
    """A lane read as `(7, 0.0)` looked like a micro-batch as old as the machine, and healthy children were killed for it."""
    command = [sys.executable, "-c", _WRITER, str(page.fileno())]
    lanes, stages, rows = set(), set(), set[int]()
    with subprocess.Popen(command, pass_fds=[page.fileno()]) as writer:
        # So many entries were read, however the machine shares its time between reader and writer.
        while len(rows) < 1_000 and writer.poll() is None:
            lanes.add(page.shards.lane(Lane.RUNNING, [7, 8]))
            stages.update([page.stage(3), page.stage(7)])
            rows.add(page.shards.rows(7))
        assert writer.poll() is None, "the writer ended by itself"
        writer.kill()
    assert lanes <= {(0, 0.0), (7, 1007.0), (8, 1008.0)}
    assert stages <= {(Stage.UNSEEN, 0.0), (Stage.RUNNING, 1003.0), (Stage.RUNNING, 1007.0)}
    assert {count % 0x010101 for count in rows} == {0}


def test_an_entry_is_known_by_its_number_for_as_long_as_a_child_lives(page: ProgressPage) -> None:
    for number in (2_047, 2_048, 4_096, 1 << 40):
        page.shards.enter(Lane.RUNNING, number, 3e8)
        page.shards.advance(number, 1 << 40)
        page.mark(number, Stage.DECODED, 3e8)
        assert page.shards.lane(Lane.RUNNING, [number - 1, number]) == (number, 3e8)
        assert (page.shards.rows(number), page.shards.rows(number + 4)) == (1 << 40, 0)
        assert page.stage(number) == (Stage.DECODED, 3e8)
        assert page.stage(number + 4)[0] is Stage.UNSEEN
