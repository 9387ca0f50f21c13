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
from threading import Thread, get_ident
from typing import TYPE_CHECKING, NoReturn

from penstock.handlers.loaded import Loaded
from penstock.workers.child import runner
from penstock.workers.child.calls.halving import DeviceFault
from penstock.workers.child.calls.run import Calls
from penstock.workers.child.device_queue import DeviceQueue
from penstock.workers.child.input_files import with_data
from penstock.workers.child.output_sizes import unsent
from penstock.workers.child.printed import serving
from penstock.workers.child.reports import ReportSender
from penstock.workers.child.runner import Flow
from penstock.workers.child.shards.sizes import ShardSizes
from penstock.workers.child.shards.threads import MicroBatch, ShardReport, ShardThreads
from penstock.workers.ipc.frames import (
    BatchDone,
    BatchFacts,
    DeviceLost,
    FromChild,
    GiveUp,
    MetricSamples,
    RunBatch,
    RunShard,
)
from penstock.workers.ipc.progress_page import ProgressPage, Stage
from penstock.workers.ipc.wire import ChildWire

if TYPE_CHECKING:
    from penstock.workers.child.batch_profile import BatchProfile

# Waking a thread and handing it the interpreter takes about this long on an idle machine.
_AT_ONCE_S = 0.0001

CRASH_EXIT = 70
_DEVICE_EXIT = 71

# What waits for the device. A fault goes through the same queue, so that the batches before it are still answered.
Work = Flow | MicroBatch | ShardReport | DeviceFault
# What waits for the writer. A recalled batch is already done.
Ran = Work | BatchDone


class ChildThreads:
    """Serves one supervisor, over `wire`, with one loaded model."""

    def __init__(self, wire: ChildWire, page: ProgressPage, loaded: Loaded, sizes: ShardSizes, calls: Calls) -> None:
        self._wire = wire
        self._page = page
        self._loaded = loaded
        self._calls = calls
        self._reports = loaded.context.running.reporter = ReportSender(wire.write, start_thread=start_thread)
        self._metrics = loaded.context.metrics
        self._shards = ShardThreads(loaded, page.shards, sizes, calls)
        self._device_queue: DeviceQueue[Work | None] = DeviceQueue()
        self._ran: SimpleQueue[Ran | None] = SimpleQueue()
        # How many results the main thread passed on, and how many the writing thread wrote: each thread has its own count.
        self._handed_on = self._put_out_count = 0
        # What completing and writing took per item, the last time.
        self._item_s = float("inf")

    def serve(self) -> None:
        """Until the supervisor says stop or is gone; a batch that was begun is finished and sent."""
        self._send_measured()
        writer = start_thread(self._write)
        start_thread(self._read)
        self._run_all()
        self._ran.put(None)
        writer.join()

    def _run_all(self) -> None:
        """Run what arrives, until the supervisor says stop."""
        while (work := self._device_queue.take()) is not None:
            ran = self._run(work)
            if isinstance(ran, Flow) and self._is_written_at_once(ran):
                self._put_out(ran)
                continue
            self._handed_on += 1
            self._ran.put(ran)
            if isinstance(ran, DeviceFault):
                break

    def _is_written_at_once(self, flow: Flow) -> bool:
        """D71: whether this thread writes the outcomes sooner than it could wake another one, and keeps nothing waiting.

        A handler's own postprocess stays in one thread.
        """
        if self._loaded.postprocess is not None or self._device_queue.has_work or self._handed_on != self._put_out_count:
            return False
        return flow.size * self._item_s < _AT_ONCE_S

    # The thread that reads and prepares.

    def _read(self) -> None:
        has_shards = False
        self._loaded.context.running.beside.add(get_ident())
        while isinstance(frame := self._wire.read(), RunBatch | RunShard | GiveUp | BatchFacts):
            if isinstance(frame, RunBatch):
                if not self._take_up(frame):
                    return
                continue
            if isinstance(frame, GiveUp):
                self._reports.give_up(frame)
                continue
            if isinstance(frame, BatchFacts):
                self._reports.on_facts(frame)
                continue
            self._shards.give(frame)
            if not has_shards:
                # The thread starts with the first shard, because most models never get one.
                has_shards = True
                start_thread(partial(self._shards.feed, self._device_queue.await_room, self._device_queue.put_bulk))
        self._device_queue.put(None)

    def _take_up(self, frame: RunBatch) -> bool:
        """Prepare the batch and put it into the queue. False if the device is gone."""
        self._device_queue.put(work := self._prepare(frame))
        return not isinstance(work, DeviceFault)

    def _prepare(self, frame: RunBatch) -> Flow | DeviceFault:
        began_at = time.monotonic()
        self._page.mark(frame.batch, Stage.DECODING, began_at)
        serving.batch = frame.batch
        items = with_data(frame.items) if any(item.path for item in frame.items) else frame.items
        files_s = time.monotonic() - began_at
        try:
            flow = runner.prepare(self._loaded, items, self._calls)
        except DeviceFault as fault:
            return fault
        flow.batch, flow.profile_dir, flow.may_try = frame.batch, frame.profile_dir, not frame.urgent
        serving.batch = 0
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
            profile.run(lambda: runner.infer(self._loaded, flow, self._calls))
        else:
            runner.infer(self._loaded, flow, self._calls)
        if self._reports.is_used:
            runner.expire(flow, self._reports.end(flow.batch))
        ended_at = time.monotonic()
        self._shards.online_runs.append((flow.inference_s, ended_at))
        self._device_queue.on_online_ended(ended_at, run_s=flow.inference_s)
        self._page.mark(flow.batch, Stage.RAN, ended_at)
        if profile:
            profile.save()
        # The profiler's start is left out, because none of the batch's stages took that time.
        flow.began_at, flow.ended_at = taken_at, ended_at - (began_at - taken_at)
        flow.device_wait_s = taken_at - flow.ready_at
        return flow

    def _profile(self, folder: str) -> BatchProfile:
        # Imported only for recorded batches: the others must not pay for profilers.
        from penstock.workers.child.batch_profile import BatchProfile

        profile = BatchProfile(self._loaded, Path(folder))
        profile.start()
        return profile

    # The thread that completes and writes.

    def _write(self) -> None:
        self._loaded.context.running.beside.add(get_ident())
        while (ran := self._ran.get()) is not None:
            self._put_out(ran)
            self._put_out_count += 1

    def _put_out(self, ran: Ran) -> None:
        # CPU time of this thread alone: the time of other programs on the core says nothing about the outcomes.
        began = time.thread_time()
        try:
            frame = self._completed(ran)
        except DeviceFault as fault:
            self._give_up(fault)
        # Sent before the outcomes, so that a caller with an answer finds it counted.
        self._send_measured()
        if frame is not None:
            self._send(frame)
        if isinstance(ran, Flow):
            self._item_s = (time.thread_time() - began) / ran.size

    def _send_measured(self) -> None:
        if self._metrics.unsent:
            self._wire.write(MetricSamples(self._metrics.drain()))

    def _send(self, frame: FromChild) -> None:
        try:
            self._wire.write(frame)
        except MemoryError:
            # The frame is written as a whole before a byte of it is sent.
            self._wire.write(unsent(frame))

    def _completed(self, ran: Ran) -> FromChild | None:
        match ran:
            case Flow():
                self._page.mark(ran.batch, Stage.ENCODING, time.monotonic())
                serving.batch = ran.batch
                done = runner.complete(self._loaded, ran)
                serving.batch = 0
                return done
            case MicroBatch():
                return self._shards.complete(ran)
            case ShardReport(frame):
                return frame
            case BatchDone():
                return ran
        raise ran

    def _give_up(self, fault: DeviceFault) -> NoReturn:
        """Exit at once: at a normal exit, libraries may wait for the device for ever."""
        self._wire.write(DeviceLost(fault.message, fault.broken))
        os._exit(_DEVICE_EXIT)


def start_thread(work: Callable[[], None]) -> Thread:
    """Start a thread that this process cannot work without."""
    made = Thread(target=_run_or_exit, args=(work,), daemon=True)
    made.start()
    return made


def _run_or_exit(work: Callable[[], None]) -> None:
    """If a thread ended alone, the child would live and answer nothing. The supervisor handles a process that ends."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - also SystemExit from model code
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(CRASH_EXIT)
