from __future__ import annotations

from penstock.workers.events import Sampler


def test_every_success_is_shown_up_to_the_rate_and_no_more() -> None:
    sampler = Sampler(per_s=500)
    assert [sampler.take(300, 10.0), sampler.take(300, 10.5), sampler.take(300, 10.9)] == [300, 200, 0]


def test_the_next_second_starts_anew() -> None:
    sampler = Sampler(per_s=500)
    sampler.take(900, 10.0)
    assert sampler.take(32, 11.0) == 32
