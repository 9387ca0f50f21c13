"""The threads of a child with an async handler: each batch is a task on the main thread's event loop, answered when run (D87).

A supervisor gives each item as a batch of its own, so that none waits for another one. Preparing and writing keep their
threads, and the loop's thread writes nothing: a supervisor that does not read holds up no item. Only async models import this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, get_ident

from penstock.handlers.loaded import Loaded
from penstock.handlers.running.call import InHand
from penstock.handlers.running.coroutines import CoroutineStage, OnTurn, event_loop
from penstock.workers.child import runner
from penstock.workers.child.calls.halving import DeviceFault
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.device_queue import DeviceQueue
from penstock.workers.child.input_files import with_data
from penstock.workers.child.printed import serving
from penstock.workers.child.runner import Flow
from penstock.workers.child.shards.sizes import ShardSizes
from penstock.workers.child.shards.threads import MicroBatch, ShardReport
from penstock.workers.child.threads import (
    ChildThreads,
    Ran,
    Work,
    start_thread,
)
from penstock.workers.ipc.frames import FromChild, RunBatch
from penstock.workers.ipc.progress_page import Lane, ProgressPage
from penstock.workers.ipc.wire import ChildWire


class LoopQueue(DeviceQueue[Work | None]):
    """Hands everything to the event loop, and micro-batches of shards one by one: call `on_bulk_begun` for the next."""

    def __init__(self, put: Callable[[Work | None], None]) -> None:
        super().__init__()
        self._put = put
        self._turn = Semaphore(1)

    def put(self, batch: Work | None) -> None:
        self._put(batch)

    def await_room(self) -> None:
        self._turn.acquire()

    def put_bulk(self, batch: Work | None) -> None:
        self._put(batch)

    def on_bulk_begun(self) -> None:
        self._turn.release()


class BusyTime:
    """The seconds in which anything ran: each end counts those since the end before. Pure; moments are passed in."""

    def __init__(self) -> None:
        self._running = 0
        self._counted_at = 0.0

    def begin(self, now: float) -> None:
        if not self._running:
            self._counted_at = now
        self._running += 1

    def end(self, now: float) -> float:
        self._running -= 1
        busy_s, self._counted_at = now - self._counted_at, now
        return busy_s


class OverlapThreads(ChildThreads):
    """See `ChildThreads`."""

    def __init__(self, wire: ChildWire, page: ProgressPage, loaded: Loaded, sizes: ShardSizes, calls: Calls) -> None:
        super().__init__(wire, page, loaded, sizes, calls)
        assert isinstance(loaded.inference, CoroutineStage)
        self._stage = loaded.inference
        # Made here, by one thread: two that ask for it first would each get a loop.
        self._loop = event_loop()
        self._arrived: asyncio.Queue[Work | None] = asyncio.Queue()
        self._device_queue = self._loop_queue = LoopQueue(self._arrive)
        # The numbers of unanswered batches. The reading thread adds them, the writing thread removes them.
        self._under_way: set[int] = set()
        self._busy = BusyTime()
        self._rows_turn = asyncio.Lock()
        self._rows_in_hand = 0
        # Inputs that were read, and when that began.
        self._were_read: SimpleQueue[tuple[Flow, float]] = SimpleQueue()

    # The thread that reads and prepares.

    def _take_up(self, frame: RunBatch) -> bool:
        self._under_way.add(frame.batch)
        if not self._loaded.input_urls:
            return super()._take_up(frame)
        start_thread(partial(self._read_inputs, frame))
        return True

    def _arrive(self, work: Work | None) -> None:
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, work)

    # The main thread.

    def _run_all(self) -> None:
        if self._loaded.input_urls:
            start_thread(self._preprocess)
        self._loop.run_until_complete(self._take_all())

    async def _take_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            while (work := await self._arrived.get()) is not None:
                group.create_task(self._take(work))

    async def _take(self, work: Work) -> None:
        try:
            if isinstance(work, Flow):
                await self._infer_batch(work)
            elif isinstance(work, MicroBatch | ShardReport):
                await self._infer_rows(work)
        except DeviceFault as fault:
            work = fault
        self._ran.put(work)

    async def _infer_batch(self, flow: Flow) -> None:
        taken_at = time.monotonic()
        profile = self._profile(flow.profile_dir) if flow.profile_dir else None
        began_at = time.monotonic()
        self._busy.begin(began_at)
        await self._infer_items(flow)
        ended_at = time.monotonic()
        flow.busy_s = self._busy.end(ended_at)
        if profile:
            # The recording has all that ran on the loop meanwhile.
            profile.stop()
            profile.save()
        flow.began_at, flow.ended_at = taken_at, ended_at - (began_at - taken_at)
        flow.device_wait_s = taken_at - flow.ready_at

    async def _infer_items(self, flow: Flow, on_turn: OnTurn | None = None) -> None:
        began = time.perf_counter()
        if flow.to_explain:
            runner.explain(self._loaded, flow)
        if flow.values:
            outputs = await self._stage.run(flow.values, InHand(flow.batch, flow.live, flow), on_turn)
            flow.padding, flow.calls = self._calls.padding(), 1
            runner.sift(flow, outputs)
        flow.inference_s = time.perf_counter() - began

    async def _infer_rows(self, work: MicroBatch | ShardReport) -> None:
        """One micro-batch after the other, so that a crash is blamed on the shard whose rows were in the handler's hands."""
        async with self._rows_turn:
            self._loop_queue.on_bulk_begun()
            if isinstance(work, MicroBatch):
                work.flow.device_wait_s = time.monotonic() - work.flow.ready_at
                await self._infer_items(work.flow, partial(self._on_row, work.work.number))

    def _on_row(self, shard: int, begins: bool) -> None:
        """The time limit of a micro-batch counts from the latest row that began or ended, and not while all of them wait."""
        self._rows_in_hand += 1 if begins else -1
        if self._rows_in_hand:
            self._page.shards.enter(Lane.RUNNING, shard, time.monotonic())
        else:
            self._page.shards.leave(Lane.RUNNING)

    # The thread that completes and writes.

    def _completed(self, ran: Ran) -> FromChild | None:
        if isinstance(ran, Flow):
            self._under_way.discard(ran.batch)
            if self._reports.is_used:
                # A copy, because the reading thread adds to the set.
                oldest = min(list(self._under_way), default=0)
                runner.expire(ran, self._reports.end(ran.batch, oldest=oldest))
        return super()._completed(ran)

    # For inputs with URLs: they take seconds to read, so each is read in its own thread; one more thread preprocesses.

    def _read_inputs(self, frame: RunBatch) -> None:
        began = time.perf_counter()
        serving.batch = frame.batch
        flow = runner.read(self._loaded, with_data(frame.items))
        flow.batch, flow.profile_dir = frame.batch, frame.profile_dir
        self._were_read.put((flow, began))

    def _preprocess(self) -> None:
        self._loaded.context.running.beside.add(get_ident())
        while True:
            flow, began = self._were_read.get()
            serving.batch = flow.batch
            try:
                runner.preprocessed(self._loaded, flow, self._calls, began=began)
            except DeviceFault as fault:
                self._arrive(fault)
                return
            flow.ready_at = time.monotonic()
            self._arrive(flow)
