"""A child whose streams nobody takes for a while: it waits, is not taken for one that hangs, and goes on where it was."""

from __future__ import annotations

import time

import msgspec

from penstock.workers.ipc.frames import Output
from penstock.workers.slot.child.events import BatchRan, ItemsSaid
from tests.integration.test_child_shards import LIMIT_S, Bench
from tests.integration.worker_process import HANDLERS


def test_a_child_that_is_not_listened_to_waits_and_loses_nothing() -> None:
    bench = Bench(f"{HANDLERS}/speller.py:spell", batch=1, max_run_s=LIMIT_S, max_stream_bytes=1 << 26)
    text = "penstock" * 100_000
    batch = bench.online({"text": text})
    bench.await_true(lambda: any(isinstance(event, ItemsSaid) for event in bench.events))
    bench.child.pause(time.monotonic(), is_paused=True)
    until = time.monotonic() + LIMIT_S * 1.2
    heard = len(bench.events)
    bench.await_true(lambda: time.monotonic() > until)
    assert len(bench.events) == heard
    bench.child.pause(time.monotonic(), is_paused=False)
    end = bench.end_of(batch)
    assert isinstance(end, BatchRan)
    [output] = end.done.outcomes
    assert isinstance(output, Output)
    assert msgspec.json.decode(output.data) == text
    said = [event.said for event in bench.events if isinstance(event, ItemsSaid)]
    assert b"".join(chunk[1:-1] for one in said for report in one.reports for chunk in report.chunks).decode() == text
    bench.child.close()
