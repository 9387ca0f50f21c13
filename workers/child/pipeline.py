"""The batches on their way through a child's threads.

While batch n is on the device, batch n+1 is decoded and batch n-1 is encoded. One thread reads and prepares, the main one runs
inference (some libraries insist on the main thread), one completes and writes, and a fourth prepares micro-batches of shards.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from penstock.handlers.loaded import Loaded
from penstock.workers.child import runner
from penstock.workers.child.device_queue import DeviceQueue
from penstock.workers.child.runner import Flow
from penstock.workers.child.shard_pipeline import MicroBatch, ShardPipeline, ShardReport
from penstock.workers.child.shard_sizes import ShardSizes
from penstock.workers.child.stage_call import DeviceFault
from penstock.workers.ipc.frames import BatchDone, ChildWire, DeviceLost, FromChild, Item, RunBatch, RunShard
from penstock.workers.ipc.progress_page import ProgressPage, Stage

if TYPE_CHECKING:
    from penstock.workers.child.batch_profile import BatchProfile

CRASH_EXIT = 70
_DEVICE_EXIT = 71

# What waits for the device. A fault takes the batches' way too, so that the batches before it are still answered.
Work = Flow | MicroBatch | ShardReport | DeviceFault
# What waits for the writer. A recalled batch is already done.
Ran = Work | BatchDone


class Pipeline:
    """Serves one supervisor, over `wire`, with one loaded model."""

    def __init__(self, wire: ChildWire, page: ProgressPage, loaded: Loaded, sizes: ShardSizes) -> None:
        self._wire = wire
        self._page = page
        self._loaded = loaded
        self._shards = ShardPipeline(loaded, page.shards, sizes)
        self._device_queue: DeviceQueue[Work | None] = DeviceQueue()
        self._ran: SimpleQueue[Ran | None] = SimpleQueue()

    def serve(self) -> None:
        """Until the supervisor says stop or is gone; a batch that was begun is finished and sent."""
        writer = _start_thread(self._write)
        _start_thread(self._read)
        while (work := self._device_queue.take()) is not None:
            self._ran.put(ran := self._run(work))
            if isinstance(ran, DeviceFault):
                break
        self._ran.put(None)
        writer.join()

    # The thread that reads and prepares.

    def _read(self) -> None:
        has_shards = False
        while isinstance(frame := self._wire.read(), RunBatch | RunShard):
            if isinstance(frame, RunBatch):
                self._device_queue.put(work := self._prepare(frame))
                if isinstance(work, DeviceFault):
                    return
                continue
            self._shards.give(frame)
            if not has_shards:
                # Most models never get a shard, and do without the thread.
                has_shards = True
                _start_thread(partial(self._shards.feed, self._device_queue.await_room, self._device_queue.put_bulk))
        self._device_queue.put(None)

    def _prepare(self, frame: RunBatch) -> Flow | DeviceFault:
        began_at = time.monotonic()
        self._page.mark(frame.batch, Stage.DECODING, began_at)
        items = [_with_data(item) if item.path else item for item in frame.items]
        files_s = time.monotonic() - began_at
        try:
            flow = runner.prepare(self._loaded, items)
        except DeviceFault as fault:
            return fault
        flow.batch, flow.profile_dir = frame.batch, frame.profile_dir
        flow.decode_s += files_s
        flow.ready_at = time.monotonic()
        self._page.mark(frame.batch, Stage.DECODED, flow.ready_at)
        return flow

    # The main thread.

    def _run(self, work: Work) -> Ran:
        if isinstance(work, ShardReport | DeviceFault):
            return work
        try:
            return self._shards.infer(work) if isinstance(work, MicroBatch) else self._infer(work)
        except DeviceFault as fault:
            return fault

    def _infer(self, flow: Flow) -> Flow | BatchDone:
        taken_at = time.monotonic()
        profile = self._profile(flow.profile_dir) if flow.profile_dir else None
        began_at = time.monotonic()
        # Mark first, look second: the supervisor writes its recall first and looks for the mark second, so one sees the other.
        self._page.mark(flow.batch, Stage.RUNNING, began_at)
        if self._page.is_recalled(flow.batch):
            return BatchDone(flow.batch, [], began_at, began_at, 0.0, 0.0, 0.0)
        if profile:
            profile.run(lambda: runner.infer(self._loaded, flow))
        else:
            runner.infer(self._loaded, flow)
        ended_at = time.monotonic()
        self._shards.on_online_ran(flow.inference_s, ended_at)
        self._device_queue.on_online_ended(ended_at, run_s=flow.inference_s)
        self._page.mark(flow.batch, Stage.RAN, ended_at)
        if profile:
            profile.save()
        # The profiler's start is left out, because none of the batch's stages took that time.
        flow.began_at, flow.ended_at = taken_at, ended_at - (began_at - taken_at)
        flow.device_wait_s = taken_at - flow.ready_at
        return flow

    def _profile(self, folder: str) -> BatchProfile:
        # Imported only for batches that are recorded: the others must not pay for profilers.
        from penstock.workers.child.batch_profile import BatchProfile

        profile = BatchProfile(self._loaded, Path(folder))
        profile.start()
        return profile

    # The thread that completes and writes.

    def _write(self) -> None:
        while (ran := self._ran.get()) is not None:
            try:
                frame = self._completed(ran)
            except DeviceFault as fault:
                self._give_up(fault)
                return
            if frame is not None:
                self._wire.write(frame)

    def _completed(self, ran: Ran) -> FromChild | None:
        match ran:
            case Flow():
                self._page.mark(ran.batch, Stage.ENCODING, time.monotonic())
                return runner.complete(self._loaded, ran)
            case MicroBatch():
                return self._shards.complete(ran)
            case ShardReport(frame):
                return frame
            case BatchDone():
                return ran
        raise ran

    def _give_up(self, fault: DeviceFault) -> None:
        """Exit at once: what libraries do at a normal exit may wait for the device for ever."""
        self._wire.write(DeviceLost(fault.message, fault.broken))
        os._exit(_DEVICE_EXIT)


def _with_data(item: Item) -> Item:
    return Item(item.content_type, Path(item.path).read_bytes(), call=item.call)


def _start_thread(work: Callable[[], None]) -> Thread:
    made = Thread(target=_run_or_exit, args=(work,), daemon=True)
    made.start()
    return made


def _run_or_exit(work: Callable[[], None]) -> None:
    """A thread that ended alone would leave a child that answers nothing. The supervisor handles a process that ends."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - also SystemExit from model code
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(CRASH_EXIT)
