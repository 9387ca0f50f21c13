from __future__ import annotations

from penstock.workers.child.overlap import BusyTime


def test_time_in_which_several_ran_counts_once() -> None:
    busy = BusyTime()
    busy.begin(10.0)
    busy.begin(11.0)
    assert busy.end(13.0) == 3.0
    busy.begin(14.0)
    assert [busy.end(15.0), busy.end(16.0)] == [2.0, 1.0]


def test_time_in_which_none_ran_does_not_count() -> None:
    busy = BusyTime()
    busy.begin(10.0)
    busy.end(11.0)
    busy.begin(20.0)
    assert busy.end(20.5) == 0.5
