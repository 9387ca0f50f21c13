"""One batch through a handler, all three steps in a row, as a child takes them in three threads."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from penstock.handlers.loaded import Loaded
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.runner import Clock, complete, infer, prepare
from penstock.workers.ipc.frames import BatchDone, Item


def run_batch(loaded: Loaded, items: Sequence[Item], *, calls: Calls | None = None, clock: Clock = perf_counter) -> BatchDone:
    """All three steps in a row."""
    calls = calls or Calls(loaded)
    flow = prepare(loaded, items, calls, clock=clock)
    infer(loaded, flow, calls, clock=clock)
    return complete(loaded, flow, clock=clock)
