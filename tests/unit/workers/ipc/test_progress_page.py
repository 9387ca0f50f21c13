from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.workers.ipc.progress_page import ProgressPage, Stage


@pytest.fixture
def board() -> Iterator[ProgressPage]:
    made = ProgressPage.create()
    yield made
    made.close()


def test_a_stage_is_read_with_its_moment(board: ProgressPage) -> None:
    board.mark(3, Stage.RUNNING, 12.5)
    assert board.stage(3) == (Stage.RUNNING, 12.5)


def test_a_batch_that_the_child_has_not_seen_is_unseen(board: ProgressPage) -> None:
    board.mark(3, Stage.RUNNING, 12.5)
    assert board.stage(7)[0] is Stage.UNSEEN
    assert board.stage(4)[0] is Stage.UNSEEN


def test_only_a_batch_that_has_not_begun_can_be_recalled(board: ProgressPage) -> None:
    board.mark(1, Stage.RUNNING, 1.0)
    board.mark(2, Stage.DECODED, 1.0)
    assert not board.recall(1)
    assert board.recall(2)
    assert board.recalled(2)
    assert not board.recalled(3)


def test_a_crash_is_blamed_on_batches_that_the_handler_was_touching() -> None:
    assert [stage for stage in Stage if stage.touched] == [Stage.DECODING, Stage.RUNNING, Stage.ENCODING]
