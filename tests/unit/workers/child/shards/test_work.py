from __future__ import annotations

from typing import Any

from penstock.handlers.contract import Failure
from penstock.shard import NOT_RUN, SHARD_MEDIA, Shard, ShardOutcome, decode_outcome
from penstock.workers.child.runner import Flow
from penstock.workers.child.shards.rows import RowsOutcome
from penstock.workers.child.shards.work import ShardWork, shard_work
from penstock.workers.ipc.frames import Output


def ran(rows: list[Any], outputs: list[Any], *, size: int = 2) -> ShardWork:
    """A shard whose rows ran in calls of `size`; `outputs` maps places to outputs."""
    work = shard_work(1, Shard("application/json", rows), 5.0)
    while not work.has_ended:
        places = work.take(size)
        work.put(places, RowsOutcome([outputs[place] for place in places], 0.1, None))
        work.account(Flow(len(places), [], [], {}, inference_s=0.5, padding=0.5), postprocess_s=0.1)
    return work


def outcome(work: ShardWork) -> ShardOutcome:
    [output] = work.frame(9.0).done.outcomes
    assert isinstance(output, Output)
    assert output.content_type == SHARD_MEDIA
    return decode_outcome(output.data)


def test_outputs_come_back_in_the_shards_order_though_rows_ran_by_length() -> None:
    work = ran(["ccc", "a", "bb"], [3, 1, 2])
    assert list(work.order) == [1, 2, 0]
    assert outcome(work).outputs == [3, 1, 2]


def test_a_bad_row_is_named_by_its_place_and_leaves_none() -> None:
    found = outcome(ran(["ccc", "a", "bb"], [3, Failure("no", "refused", retryable=True), b"2"]))
    assert found.outputs == [3, None, b"2"]
    [failure] = found.failures
    assert (failure.place, failure.code, failure.message, failure.retryable) == (1, "refused", "no", True)


def test_an_output_that_msgpack_cannot_hold_fails_alone() -> None:
    found = outcome(ran(["a", "b"], [2**70, 2]))
    assert found.outputs == [None, 2]
    assert [failure.code for failure in found.failures] == ["handler_contract"]


def test_a_shard_whose_time_is_over_ends_with_the_rows_that_ran() -> None:
    """Regression: a cancel waited for the whole shard of a slow model, then gave all of its rows up, and showed none."""
    work = shard_work(1, Shard("application/json", ["ccc", "a", "bb", "dddd"], most_s=2.0), 5.0)
    assert (work.is_over(6.9), work.is_over(7.0)) == (False, True)
    assert not shard_work(1, Shard("application/json", ["a"]), 5.0).is_over(1e9)
    places = work.take(2)
    work.end_here()
    assert not work.has_ended
    work.put(places, RowsOutcome([1, 2], 0.1, None))
    assert work.has_ended
    done = work.frame(9.0).done
    assert (done.rows, done.bad_rows) == (2, 0)
    found = decode_outcome(done.outcomes[0].data)
    assert found.outputs == [None, 1, 2, None]
    assert [(failure.place, failure.code, failure.retryable) for failure in found.failures] == [
        (0, NOT_RUN, True),
        (3, NOT_RUN, True),
    ]


def test_stages_are_sums_and_rows_and_calls_are_counted() -> None:
    frame = ran(["a", "b", "c"], [1, Failure("no"), 3]).frame(9.0)
    done = frame.done
    assert (frame.calls, done.rows, done.bad_rows) == (2, 3, 1)
    assert (done.began_at, done.ended_at, done.inference_s, done.padding) == (5.0, 9.0, 1.0, 0.5)
