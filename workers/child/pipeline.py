"""The batches on their way through a child's threads, so that batch n+1 is decoded and batch n-1 encoded while batch n is on
the device: one reads and prepares, the main one runs inference (some libraries insist on the main thread), one completes and
writes. A fourth prepares the micro-batches of shards.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from penstock.handlers.contract import Failure
from penstock.handlers.loaded import Loaded
from penstock.workers.child import runner
from penstock.workers.child.device_queue import DeviceQueue
from penstock.workers.child.shard_pipeline import BulkWork, MicroBatch, ShardPipeline, ShardReport
from penstock.workers.child.shard_sizes import ShardSizes
from penstock.workers.ipc.frames import (
    BatchDone,
    ChildWire,
    DeviceLost,
    Failed,
    FromChild,
    Item,
    Outcome,
    Output,
    RunBatch,
    RunShard,
)
from penstock.workers.ipc.progress_page import ProgressPage, Stage

if TYPE_CHECKING:
    from penstock.workers.child.batch_profile import BatchProfile

CRASH_EXIT = 70
_DEVICE_EXIT = 71


class _Prepared(NamedTuple):
    batch: int
    flow: runner.Flow
    at: float
    profile_dir: str


class _Ran(NamedTuple):
    batch: int
    flow: runner.Flow | None
    began_at: float
    ended_at: float
    device_wait_s: float = 0.0


_Fault = runner.DeviceFault


class Pipeline:
    """The batches on their way through the threads."""

    def __init__(self, wire: ChildWire, board: ProgressPage, loaded: Loaded, sizes: ShardSizes) -> None:
        self._wire = wire
        self._board = board
        self._loaded = loaded
        self._bulk = ShardPipeline(loaded, board.shards, sizes)
        # A fault of the device takes the batches' way, so that those before it still get their answer.
        self._intake: DeviceQueue[_Prepared | BulkWork | _Fault | None] = DeviceQueue()
        self._ran: SimpleQueue[_Ran | BulkWork | _Fault | None] = SimpleQueue()

    def serve(self) -> None:
        """Until the supervisor says stop or is gone; what was begun is finished and sent."""
        writer = _thread(self._write)
        _thread(self._read)
        while (work := self._intake.take()) is not None:
            self._ran.put(ran := self._run(work))
            if isinstance(ran, _Fault):
                break
        self._ran.put(None)
        writer.join()

    def _read(self) -> None:
        fed = False
        while isinstance(frame := self._wire.read(), RunBatch | RunShard):
            if isinstance(frame, RunBatch):
                self._intake.put(work := self._prepare(frame))
                if isinstance(work, _Fault):
                    return
                continue
            self._bulk.give(frame)
            if not fed:
                # Most models never see a shard.
                fed = True
                _thread(partial(self._bulk.feed, self._intake.await_room, self._intake.put_bulk))
        self._intake.put(None)

    def _prepare(self, frame: RunBatch) -> _Prepared | _Fault:
        began_at = time.monotonic()
        self._board.mark(frame.batch, Stage.DECODING, began_at)
        items = [_item(item) for item in frame.items]
        files_s = time.monotonic() - began_at
        try:
            flow = runner.prepare(self._loaded, items)
        except _Fault as fault:
            return fault
        done_at = time.monotonic()
        self._board.mark(frame.batch, Stage.DECODED, done_at)
        flow = replace(flow, decode_s=files_s + flow.decode_s)
        return _Prepared(frame.batch, flow, done_at, frame.profile_dir)

    def _run(self, work: _Prepared | BulkWork | _Fault) -> _Ran | BulkWork | _Fault:
        if isinstance(work, ShardReport | _Fault):
            return work
        try:
            return self._bulk.infer(work) if isinstance(work, MicroBatch) else self._infer(work)
        except _Fault as fault:
            return fault

    def _infer(self, prepared: _Prepared) -> _Ran:
        work = partial(runner.infer, self._loaded, prepared.flow)
        taken_at = time.monotonic()
        profile = self._profile(prepared.profile_dir) if prepared.profile_dir else None
        began_at = time.monotonic()
        # Mark first, look second: the supervisor writes its recall first and looks at the mark second, so one sees the other.
        self._board.mark(prepared.batch, Stage.RUNNING, began_at)
        if self._board.recalled(prepared.batch):
            return _Ran(prepared.batch, None, began_at, began_at)
        flow = profile.run(work) if profile else work()
        ended_at = time.monotonic()
        self._bulk.online_ran(flow.inference_s, ended_at)
        self._intake.ended(ended_at, run_s=flow.inference_s)
        self._board.mark(prepared.batch, Stage.RAN, ended_at)
        if profile:
            profile.save()
        # As if the profiler had needed no time to start: none of the batch's stages took it.
        return _Ran(prepared.batch, flow, taken_at, ended_at - (began_at - taken_at), taken_at - prepared.at)

    def _profile(self, folder: str) -> BatchProfile:
        # Imported for the batches that are recorded: the others must not pay for profilers.
        from penstock.workers.child.batch_profile import BatchProfile

        profile = BatchProfile(self._loaded, Path(folder))
        profile.start()
        return profile

    def _write(self) -> None:
        while (ran := self._ran.get()) is not None:
            try:
                frame = self._completed(ran)
            except _Fault as fault:
                self._give_up(fault)
                return
            if frame is not None:
                self._wire.write(frame)

    def _completed(self, ran: _Ran | BulkWork | _Fault) -> FromChild | None:
        match ran:
            case _Ran():
                return self._complete(ran)
            case MicroBatch():
                return self._bulk.complete(ran)
            case ShardReport(frame):
                return frame
        raise ran

    def _give_up(self, fault: _Fault) -> None:
        """At once: what libraries do at a normal exit may wait for the device for ever."""
        self._wire.write(DeviceLost(fault.message, fault.broken))
        os._exit(_DEVICE_EXIT)

    def _complete(self, ran: _Ran) -> BatchDone:
        if ran.flow is None:
            return BatchDone(ran.batch, [], ran.began_at, ran.ended_at, 0.0, 0.0, 0.0)
        self._board.mark(ran.batch, Stage.ENCODING, time.monotonic())
        result = runner.complete(self._loaded, ran.flow)
        outcomes = [_outcome(outcome) for outcome in result.outcomes]
        return BatchDone(
            ran.batch,
            outcomes,
            ran.began_at,
            ran.ended_at,
            result.preprocess_s,
            result.inference_s,
            result.postprocess_s,
            result.largest_ok,
            result.decode_s,
            result.padding,
            ran.device_wait_s,
        )


def _item(item: Item) -> runner.Item:
    return runner.Item(item.content_type, Path(item.path).read_bytes() if item.path else item.data, item.call)


def _outcome(outcome: runner.Outcome) -> Outcome:
    if isinstance(outcome, Failure):
        return Failed(outcome.code, outcome.message, outcome.retryable)
    return Output(outcome.content_type, outcome.data)


def _thread(work: Callable[[], None]) -> Thread:
    made = Thread(target=_or_die, args=(work,), daemon=True)
    made.start()
    return made


def _or_die(work: Callable[[], None]) -> None:
    """A thread that ended alone would leave a child that answers nothing; the end of the process is a crash: handled."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - also SystemExit from model code
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(CRASH_EXIT)
