"""A store that is away when a run asks for its pushes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.errors import StoreUnavailable
from penstock.runs.shards.push_listener import PushListener
from penstock.runs.shards.shard_queue import ShardQueue, Terms
from penstock.runs.shards.window import ShardPiece

NOBODY = "redis://127.0.0.1:1/0"


def test_a_store_that_is_away_is_told_as_such_and_nothing_is_heard() -> None:
    ears = PushListener(NOBODY)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        ears.listen()
    assert ears.heard(0.001) == []
    ears.close()


def test_a_run_that_begins_while_the_store_restarts_waits_for_it(tmp_path: Path) -> None:
    # A driver that was resumed right after kill -9 of the store ended as if by a bug: "ConnectionError", exit code 70.
    queue: Any = None
    terms = Terms("double", "1", "application/json")
    desk = ShardQueue(queue, LocalBlobs(tmp_path), PushListener(NOBODY), terms=terms, inputs=lambda piece: [0] * len(piece))
    desk.submit([ShardPiece(0, [0, 1], 2.0)])
    assert len(desk) == 1
    assert "cannot be reached" in desk.note
