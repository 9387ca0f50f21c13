"""The shards on their way through a child's threads.

One thread reads and prepares micro-batches, the main one runs them, and a third completes them and puts the rows back in place.
Online batches take the same way, and go first (`DeviceQueue`).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import get_ident
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.handlers.contract import failure_of
from penstock.handlers.loaded import Loaded
from penstock.inputs.request import RequestInput
from penstock.shard import Shard, decode_shard
from penstock.workers.child import runner
from penstock.workers.child.calls.halving import DeviceFault
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.input_files import input_of
from penstock.workers.child.runner import Flow
from penstock.workers.child.shards.rows import complete_rows, prepare_rows
from penstock.workers.child.shards.sizes import ShardSizes
from penstock.workers.child.shards.work import ShardWork, shard_work
from penstock.workers.ipc.frames import BatchDone, Item, RunShard, ShardDone
from penstock.workers.ipc.progress_page import Lane, ShardProgress

# A thread that waits for the interpreter gets it after at most this long, so that decoding a shard delays no online batch.
_SWITCH_S = 0.0005


class MicroBatch(NamedTuple):
    """Rows of one shard between two threads, and their places in the shard."""

    work: ShardWork
    places: Sequence[int]
    flow: Flow


class ShardReport(NamedTuple):
    """The end of a shard that needs no run. It takes the micro-batches' way, so that it overtakes none of its own shard."""

    frame: ShardDone


class _MicroBatchRun(NamedTuple):
    """How long a micro-batch took, from which the sizes of the next ones are chosen."""

    size: int
    cost: int
    whole_s: float
    device_s: float
    largest_ok: int | None


Put = Callable[[MicroBatch | ShardReport | DeviceFault], None]


class ShardThreads:
    """`feed` is one thread's work, `infer` the main thread's, `complete` the writer's.

    `online_runs`: the last online batches, in seconds on the device and by the moment (monotonic) at which each ended. The main
    thread appends to it.
    """

    def __init__(self, loaded: Loaded, progress: ShardProgress, sizes: ShardSizes, calls: Calls) -> None:
        self._loaded = loaded
        self._progress = progress
        self._sizes = sizes
        self._calls = calls
        self._shards: SimpleQueue[RunShard] = SimpleQueue()
        # Other threads append to these; the thread that chooses sizes learns from them.
        self._runs: deque[_MicroBatchRun] = deque()
        self.online_runs: deque[tuple[float, float]] = deque(maxlen=64)

    # From the thread that reads.

    def give(self, order: RunShard) -> None:
        self._shards.put(order)

    # The thread that prepares.

    def feed(self, await_room: Callable[[], None], put: Put) -> None:
        """Prepare one shard after the other, without end. Every `put` follows an `await_room`."""
        self._loaded.context.running.beside.add(get_ident())
        order = self._shards.get()
        sys.setswitchinterval(_SWITCH_S)
        while True:
            try:
                self._feed(order, await_room, put)
            except DeviceFault as fault:
                put(fault)
                return
            order = self._shards.get()

    def _feed(self, order: RunShard, await_room: Callable[[], None], put: Put) -> None:
        work = self._open(order)
        if isinstance(work, ShardDone):
            await_room()
            put(ShardReport(work))
            return
        while work.cut < len(work.order):
            await_room()
            if self._progress.is_recalled(work.number):
                put(ShardReport(_recalled(work.number, time.monotonic())))
                return
            put(self._prepare(work))

    def _open(self, order: RunShard) -> ShardWork | ShardDone:
        """The shard ready to be cut into micro-batches, or its end if no row is to run."""
        began_at = time.monotonic()
        if not self._progress.begin(order.shard):
            return _recalled(order.shard, began_at)
        # The lane gets no mark, because this is our own code: a crash of the handler meanwhile is not this shard's fault.
        try:
            work = shard_work(order.shard, _rows_of(order.item), began_at, facts=order.item.facts)
        except (PenstockError, OSError, MemoryError) as error:
            failed = runner.failed(failure_of(error))
            return ShardDone(order.shard, BatchDone(order.shard, [failed], began_at, time.monotonic(), 0.0, 0.0, 0.0))
        now = time.monotonic()
        work.spent.decode_s = now - began_at
        return work if work.order else work.frame(now)

    def _prepare(self, work: ShardWork) -> MicroBatch:
        self._learn()
        began_at = time.monotonic()
        places = work.take(self._sizes.choose(work.next_cost, began_at))
        if work.is_over(began_at):
            work.end_here()
        rows = work.shard.rows
        self._progress.enter(Lane.PREPARING, work.number, began_at)
        some = [rows[place] for place in places]
        said = RequestInput("", b"", work.shard.headers, work.shard.query)
        flow = prepare_rows(self._loaded, work.shard.media, some, self._calls, facts=work.facts, said=said)
        self._progress.leave(Lane.PREPARING)
        flow.ready_at = time.monotonic()
        return MicroBatch(work, places, flow)

    def _learn(self) -> None:
        while self.online_runs:
            self._sizes.on_online_ran(*self.online_runs.popleft())
        while self._runs:
            run = self._runs.popleft()
            if run.largest_ok is None:
                self._sizes.on_ran(run.size, run.cost, whole_s=run.whole_s, device_s=run.device_s)
            else:
                self._sizes.cap(run.largest_ok)

    # The main thread.

    def infer(self, batch: MicroBatch) -> MicroBatch:
        began_at = time.monotonic()
        self._progress.enter(Lane.RUNNING, batch.work.number, began_at)
        batch.flow.device_wait_s = began_at - batch.flow.ready_at
        runner.infer(self._loaded, batch.flow, self._calls)
        self._progress.leave(Lane.RUNNING)
        return batch

    # The thread that writes.

    def complete(self, batch: MicroBatch) -> ShardDone | None:
        """Put the rows back in their places. The shard's end, if these were its last rows."""
        work, flow = batch.work, batch.flow
        began_at = time.monotonic()
        self._progress.enter(Lane.COMPLETING, work.number, began_at)
        outcome = complete_rows(self._loaded, flow)
        work.put(batch.places, outcome)
        work.account(flow, postprocess_s=outcome.postprocess_s)
        whole_s = flow.decode_s + flow.preprocess_s + flow.inference_s + outcome.postprocess_s
        cost = work.costs[batch.places[0]]
        self._runs.append(_MicroBatchRun(flow.size, cost, whole_s, flow.inference_s, outcome.largest_ok))
        frame = work.frame(time.monotonic()) if work.has_ended else None
        self._progress.leave(Lane.COMPLETING)
        self._progress.advance(work.number, work.done)
        return frame


def _rows_of(item: Item) -> Shard:
    return decode_shard(input_of(item))


def _recalled(shard: int, now: float) -> ShardDone:
    return ShardDone(shard, BatchDone(shard, [], now, now, 0.0, 0.0, 0.0))
