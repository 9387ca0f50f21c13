"""The shards on their way through a child's threads: one reads and prepares micro-batches, the main one runs them, a third
completes them and puts the rows back. Online batches take the same way, and go first (`intake.py`).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.handlers.contract import failure_of
from penstock.handlers.loaded import Loaded
from penstock.shard import Shard, decode_shard
from penstock.workers.child import runner
from penstock.workers.child.shard_sizes import ShardSizes
from penstock.workers.child.shard_work import ShardWork, shard_work
from penstock.workers.ipc.frames import BatchDone, Failed, Item, RunShard, ShardDone
from penstock.workers.ipc.shard_progress import Lane, ShardProgress

# A thread that waits for the interpreter gets it after at most this long, so that decoding a shard holds up no online batch.
_SWITCH_S = 0.0005


class MicroBatch(NamedTuple):
    """Rows of one shard between two threads; `at`: ready, or run, since."""

    work: ShardWork
    places: Sequence[int]
    flow: runner.Flow
    at: float
    device_wait_s: float = 0.0


class ShardReport(NamedTuple):
    """The end of a shard that needs no run; takes the micro-batches' way, so as not to overtake one of its own."""

    frame: ShardDone


class _Run(NamedTuple):
    """What a micro-batch took, for the sizes of the next ones."""

    size: int
    cost: int
    whole_s: float
    device_s: float
    largest_ok: int | None


BulkWork = MicroBatch | ShardReport
Put = Callable[[BulkWork | runner.DeviceFault], None]


class ShardPipeline:
    """`feed` is one thread's work, `infer` the main thread's, `complete` the writer's."""

    def __init__(self, loaded: Loaded, board: ShardProgress, sizes: ShardSizes) -> None:
        self._loaded = loaded
        self._board = board
        self._sizes = sizes
        self._shards: SimpleQueue[RunShard] = SimpleQueue()
        # Appended by other threads, learned by the one that chooses.
        self._runs: deque[_Run] = deque()
        self._online: deque[tuple[float, float]] = deque(maxlen=64)

    # Told by the others.

    def give(self, order: RunShard) -> None:
        self._shards.put(order)

    def online_ran(self, run_s: float, at: float) -> None:
        self._online.append((run_s, at))

    # The thread that prepares.

    def feed(self, await_room: Callable[[], None], put: Put) -> None:
        """For ever, one shard after the other. Every `put` follows an `await_room`."""
        order = self._shards.get()
        sys.setswitchinterval(_SWITCH_S)
        while True:
            try:
                self._feed(order, await_room, put)
            except runner.DeviceFault as fault:
                put(fault)
                return
            order = self._shards.get()

    def _feed(self, order: RunShard, await_room: Callable[[], None], put: Put) -> None:
        work = self._opened(order)
        if isinstance(work, ShardDone):
            await_room()
            put(ShardReport(work))
            return
        while work.cut < len(work.order):
            await_room()
            if self._board.recalled(work.number):
                put(ShardReport(_recalled(work.number, time.monotonic())))
                return
            put(self._prepared(work))

    def _opened(self, order: RunShard) -> ShardWork | ShardDone:
        """The shard ready to be cut, or its end."""
        began_at = time.monotonic()
        if not self._board.begin(order.shard):
            return _recalled(order.shard, began_at)
        # Our own code only: a crash of the handler meanwhile must not be blamed on this shard.
        try:
            work = shard_work(order.shard, _rows_of(order.item), began_at)
        except (PenstockError, OSError, MemoryError) as error:
            failure = failure_of(error)
            failed = Failed(failure.code, failure.message, failure.retryable)
            return ShardDone(order.shard, BatchDone(order.shard, [failed], began_at, time.monotonic(), 0.0, 0.0, 0.0))
        now = time.monotonic()
        work.spent.decode_s = now - began_at
        return work if work.order else work.frame(now)

    def _prepared(self, work: ShardWork) -> MicroBatch:
        self._learn()
        began_at = time.monotonic()
        places = work.take(self._sizes.choose(work.next_cost, began_at))
        rows = work.shard.rows
        self._board.enter(Lane.PREPARING, work.number, began_at)
        flow = runner.prepare_rows(self._loaded, work.shard.media, [rows[place] for place in places])
        self._board.leave(Lane.PREPARING)
        return MicroBatch(work, places, flow, time.monotonic())

    def _learn(self) -> None:
        while self._online:
            self._sizes.online(*self._online.popleft())
        while self._runs:
            run = self._runs.popleft()
            if run.largest_ok is None:
                self._sizes.ran(run.size, run.cost, whole_s=run.whole_s, device_s=run.device_s)
            else:
                self._sizes.capped(run.largest_ok)

    # The main thread.

    def infer(self, batch: MicroBatch) -> MicroBatch:
        began_at = time.monotonic()
        self._board.enter(Lane.RUNNING, batch.work.number, began_at)
        flow = runner.infer(self._loaded, batch.flow)
        self._board.leave(Lane.RUNNING)
        return batch._replace(flow=flow, at=time.monotonic(), device_wait_s=began_at - batch.at)

    # The thread that writes.

    def complete(self, batch: MicroBatch) -> ShardDone | None:
        """Its rows back in their places; the shard's end with its last row."""
        work, flow = batch.work, batch.flow
        began_at = time.monotonic()
        self._board.enter(Lane.COMPLETING, work.number, began_at)
        outcome = runner.complete_rows(self._loaded, flow)
        work.put(batch.places, outcome)
        work.account(flow, postprocess_s=outcome.postprocess_s, device_wait_s=batch.device_wait_s)
        whole_s = flow.decode_s + flow.preprocess_s + flow.inference_s + outcome.postprocess_s
        cost = work.costs[batch.places[0]]
        self._runs.append(_Run(flow.size, cost, whole_s, flow.inference_s, outcome.largest_ok))
        frame = work.frame(time.monotonic()) if work.ended else None
        self._board.leave(Lane.COMPLETING)
        self._board.advance(work.number, work.done)
        return frame


def _rows_of(item: Item) -> Shard:
    return decode_shard(Path(item.path).read_bytes() if item.path else item.data)


def _recalled(shard: int, now: float) -> ShardDone:
    return ShardDone(shard, BatchDone(shard, [], now, now, 0.0, 0.0, 0.0))
