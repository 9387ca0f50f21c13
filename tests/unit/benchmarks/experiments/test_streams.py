"""How the comparison of streams counts chunks, and what it makes of its turns."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.experiments.streams.__main__ import result
from benchmarks.experiments.streams.reading import Marks


@given(st.lists(st.sampled_from([b"ab", b"aab", b"b", b"a", b"xx"]), max_size=30), st.randoms(use_true_random=False))
def test_a_chunk_is_counted_once_wherever_the_network_cuts_it(words: list[bytes], cut: random.Random) -> None:
    text, marks = b"".join(words), Marks(b"aab")
    while text:
        size = cut.randint(1, 4)
        marks.read(text[:size])
        text = text[size:]
    assert marks.count == b"".join(words).count(b"aab")


def test_the_median_turn_stands_for_a_server() -> None:
    turns = [{"chunks_per_s": rate, "first_chunk_p50_ms": 10.0} for rate in (100.0, 300.0, 200.0)]
    other = [{"chunks_per_s": 100.0, "first_chunk_p50_ms": 20.0}]
    found = result({"penstock": turns, "litserve": other})
    assert found["penstock"]["chunks_per_s"] == 200.0
    assert found["chunks_vs_litserve"] == 2.0
    assert found["first_chunk_vs_litserve"] == 0.5
