"""What no reader of a stream should hear is found: a judge that finds nothing proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults.streams.heard import Heard

WHOLE = [("status", {"status": "running"}), *(("chunk", ["a", n]) for n in range(3)), ("end", {"status": "succeeded"})]
TOLD = {"run": "a", "chunks": 3}


def judged(events: Sequence[tuple[str, Any]]) -> list[str]:
    heard = Heard(3)
    for number, (name, data) in enumerate(events):
        heard.take(name, str(number), data)
    return heard.judge(TOLD)


def test_a_whole_stream_and_one_that_begins_anew_have_no_fault() -> None:
    assert judged(WHOLE) == []
    assert judged([("chunk", ["b", 0]), ("chunk", ["b", 1]), ("restart", {}), *WHOLE]) == []


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        (WHOLE[:-1], "no end"),
        ([*WHOLE[:2], *WHOLE[3:]], "chunk 2 where chunk 1 was due"),
        ([*WHOLE[:2], *WHOLE[1:]], "chunk 0 where chunk 1 was due"),
        ([("chunk", ["b", 0]), *WHOLE], "chunk 0 of run a behind 1 of run b, without a restart"),
        ([*WHOLE[:3], ("restart", {}), WHOLE[-1]], "heard ('', 0), and the result says ('a', 3)"),
        ([*WHOLE[:3], WHOLE[-1]], "heard ('a', 2), and the result says ('a', 3)"),
        ([*WHOLE[:-1], ("end", {"status": "failed"})], "ended failed"),
        ([*WHOLE, WHOLE[-1]], "end after the end"),
        ([("reset", {}), *WHOLE], "an event reset"),
    ],
)
def test_a_fault_of_a_stream_is_found(events: list[tuple[str, Any]], fault: str) -> None:
    assert fault in judged(events)


def test_a_stream_is_in_the_middle_between_its_first_and_last_chunk_while_its_reader_is_connected() -> None:
    heard = Heard(2)
    assert not heard.is_in_midstream
    heard.take("chunk", "1", ["a", 0])
    assert heard.is_in_midstream
    heard.since_cut = 0
    assert not heard.is_in_midstream
    heard.take("chunk", "2", ["a", 1])
    assert not heard.is_in_midstream
