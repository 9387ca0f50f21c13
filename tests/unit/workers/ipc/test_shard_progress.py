from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.workers.ipc.progress_page import ProgressPage, Stage
from penstock.workers.ipc.shard_progress import Lane, ShardProgress


@pytest.fixture
def board() -> Iterator[ProgressPage]:
    made = ProgressPage.create()
    yield made
    made.close()


@pytest.fixture
def shards(board: ProgressPage) -> ShardProgress:
    return board.shards


def test_progress_is_told_of_the_shard_that_made_it(shards: ShardProgress) -> None:
    assert shards.begin(1)
    shards.advance(1, 256)
    assert (shards.rows(1), shards.rows(2), shards.rows(5)) == (256, 0, 0)


def test_only_a_shard_that_has_not_begun_is_recalled_as_unbegun(shards: ShardProgress) -> None:
    shards.begin(1)
    assert not shards.recall_unbegun(1)
    assert not shards.recalled(1)
    assert shards.recall_unbegun(2)
    assert not shards.begin(2)


def test_a_running_shard_can_be_left_too_and_its_place_is_free_again(shards: ShardProgress) -> None:
    shards.begin(1)
    assert shards.recall(1)
    assert shards.recalled(1)
    assert shards.begin(5)


def test_each_lane_tells_what_it_has_and_the_oldest_is_found(shards: ShardProgress) -> None:
    assert shards.touched() == set()
    assert shards.oldest() == (0, float("inf"))
    shards.enter(Lane.COMPLETING, 1, 10.0)
    shards.enter(Lane.RUNNING, 2, 9.0)
    assert shards.touched() == {1, 2}
    assert shards.oldest() == (2, 9.0)
    shards.leave(Lane.RUNNING)
    assert shards.touched() == {1}


def test_batches_and_shards_do_not_touch_each_others_entries(board: ProgressPage) -> None:
    for number in range(1, 9):
        board.mark(number, Stage.RUNNING, float(number))
        board.shards.begin(number)
        board.shards.advance(number, 100 * number)
        board.shards.recall(number)
    for lane in Lane:
        board.shards.enter(lane, 7, 1.0)
    assert [board.stage(number)[1] for number in range(5, 9)] == [5.0, 6.0, 7.0, 8.0]
    assert [board.shards.rows(number) for number in range(5, 9)] == [500, 600, 700, 800]
    assert not board.recalled(1)
