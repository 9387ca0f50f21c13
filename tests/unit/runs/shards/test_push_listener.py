"""The store does not answer when a run subscribes to its pushes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.errors import StoreUnavailable
from penstock.runs.shards.push_listener import PushListener
from penstock.runs.shards.shard_queue import ShardQueue, ShardTerms
from penstock.runs.shards.window import ShardPiece

NOBODY = "redis://127.0.0.1:1/0"


def test_a_store_that_is_away_is_named_as_the_fault_and_nothing_is_received() -> None:
    listener = PushListener(NOBODY)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        listener.listen()
    assert listener.receive(0.001) == []
    listener.close()


def test_a_run_that_begins_while_the_store_restarts_waits_for_it(tmp_path: Path) -> None:
    # Regression: a driver resumed right after kill -9 of the store ended with an internal ConnectionError, exit code 70.
    store: Any = None
    terms = ShardTerms("double", "1", "application/json")
    listener = PushListener(NOBODY)
    shards = ShardQueue(store, LocalBlobs(tmp_path), listener, terms=terms, inputs=lambda piece: [0] * len(piece))
    shards.submit([ShardPiece(0, [0, 1], 2.0)])
    assert len(shards) == 1
    assert "cannot be reached" in shards.note
