"""What a reader of a job's events is told of its stream, and what is kept for one that is slow."""

from __future__ import annotations

import pytest

from penstock.broker.records import PUSHED_BYTES, Push
from penstock.gateway.jobs.events.told import ReaderNews
from penstock.job import JobState, StreamPart, new_job_id

ID = new_job_id("m")
AB = StreamPart("1.0", (b"a", b"b"))


def push(stream: StreamPart | None) -> Push:
    return Push(ID, JobState.LEASED, stream=stream)


def told(last_event_id: str, part: StreamPart) -> list[tuple[str, bytes]]:
    return [(event.id, event.data) for event in ReaderNews(last_event_id).chunks(part)]


def test_a_pushed_part_goes_on_from_where_the_reader_is_and_nothing_is_told_twice() -> None:
    assert told("", AB) == [("~1.0:1", b"a"), ("~1.0:2", b"b")]
    assert told("1.0.0~1.0:1", AB) == [("1.0.0~1.0:2", b"b")]


@pytest.mark.parametrize(
    ("seen", "part"),
    [
        ("~1.0:1", StreamPart("1.0", (b"c",), before=2)),
        ("~1.0:2", AB),
        ("~1.0:1", StreamPart("1.1", (b"x",))),
        ("~2.0:0", AB),
        ("", StreamPart("1.0", (b"c",), before=2)),
        ("", StreamPart("1.0")),
    ],
    ids=["a gap", "seen before", "begun anew", "of an earlier attempt", "the first is missing", "too large for a push"],
)
def test_a_reader_looks_where_a_pushed_part_does_not_go_on(seen: str, part: StreamPart) -> None:
    assert not ReaderNews(seen).is_next(part)


def test_a_reader_who_saw_what_the_store_has_lost_is_told_so_and_hears_all_again() -> None:
    assert told("~1.0:3", AB) == [("~1.0:0", b"{}"), ("~1.0:1", b"a"), ("~1.0:2", b"b")]


def test_a_slow_reader_gets_in_one_what_was_pushed_meanwhile() -> None:
    both = push(AB).joined(push(StreamPart("1.0", (b"c",), before=2)))
    assert both.stream == StreamPart("1.0", (b"a", b"b", b"c"))


@pytest.mark.parametrize(
    "later",
    [
        StreamPart("1.0", (b"d",), before=3),
        StreamPart("1.1", (b"x",)),
        StreamPart("1.0", (b"x" * PUSHED_BYTES,), before=2),
        StreamPart("1.0", (b"",) * (PUSHED_BYTES // 4), before=2),
    ],
    ids=["a gap", "begun anew", "too large", "too many"],
)
def test_what_is_kept_for_a_slow_reader_is_bounded_and_it_reads_the_rest_in_the_store(later: StreamPart) -> None:
    both = push(AB).joined(push(later))
    assert both.stream == StreamPart(later.mark, (), later.before)
    assert not ReaderNews("~1.0:0").is_next(both.stream)


def test_a_change_among_chunks_stays_a_change() -> None:
    assert push(AB).joined(push(None)).stream is None
    assert push(None).joined(push(AB)).stream is None
