"""The child process: loads one model, runs its batches, knows no queue and has no credentials.

Three threads, so that batch n+1 is decoded and batch n-1 encoded while batch n is on the device: one reads and prepares, the
main one runs inference (some libraries insist on the main thread), one completes and writes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError
from penstock.handlers.handler import Failure
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.workers import runner, warmup
from penstock.workers.board import Board, Stage
from penstock.workers.frames import (
    ChildWire,
    DeviceLost,
    Done,
    Failed,
    Item,
    Load,
    LoadFailed,
    Outcome,
    Output,
    Ready,
    Run,
    Warm,
)

if TYPE_CHECKING:
    from penstock.workers.batch_profile import BatchProfile

_PR_SET_PDEATHSIG = 1
_CRASH_EXIT = 70
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


class Pipeline:
    """The batches on their way through the three threads."""

    def __init__(self, wire: ChildWire, board: Board, loaded: Loaded) -> None:
        self._wire = wire
        self._board = board
        self._loaded = loaded
        # A fault of the device takes the batches' way, so that those before it still get their answer.
        self._prepared: SimpleQueue[_Prepared | runner.DeviceFault | None] = SimpleQueue()
        self._ran: SimpleQueue[_Ran | runner.DeviceFault | None] = SimpleQueue()

    def serve(self) -> None:
        """Until the supervisor says stop or is gone; what was begun is finished and sent."""
        Thread(target=_or_die, args=(self._read,), daemon=True).start()
        writer = Thread(target=_or_die, args=(self._write,), daemon=True)
        writer.start()
        while (prepared := self._prepared.get()) is not None:
            self._ran.put(ran := self._infer(prepared))
            if isinstance(ran, runner.DeviceFault):
                break
        self._ran.put(None)
        writer.join()

    def _read(self) -> None:
        while isinstance(frame := self._wire.read(), Run):
            began_at = time.monotonic()
            self._board.mark(frame.batch, Stage.DECODING, began_at)
            items = [_item(item) for item in frame.items]
            files_s = time.monotonic() - began_at
            try:
                flow = runner.prepare(self._loaded, items)
            except runner.DeviceFault as fault:
                self._prepared.put(fault)
                return
            done_at = time.monotonic()
            self._board.mark(frame.batch, Stage.DECODED, done_at)
            flow = replace(flow, decode_s=files_s + flow.decode_s)
            self._prepared.put(_Prepared(frame.batch, flow, done_at, frame.profile_dir))
        self._prepared.put(None)

    def _infer(self, prepared: _Prepared | runner.DeviceFault) -> _Ran | runner.DeviceFault:
        if isinstance(prepared, runner.DeviceFault):
            return prepared
        work = partial(runner.infer, self._loaded, prepared.flow)
        taken_at = time.monotonic()
        profile = self._profile(prepared.profile_dir) if prepared.profile_dir else None
        began_at = time.monotonic()
        # Mark first, look second: the supervisor writes its recall first and looks at the mark second, so one sees the other.
        self._board.mark(prepared.batch, Stage.RUNNING, began_at)
        if self._board.recalled(prepared.batch):
            return _Ran(prepared.batch, None, began_at, began_at)
        try:
            flow = profile.run(work) if profile else work()
        except runner.DeviceFault as fault:
            return fault
        ended_at = time.monotonic()
        self._board.mark(prepared.batch, Stage.RAN, ended_at)
        if profile:
            profile.save()
        # As if the profiler had needed no time to start: none of the batch's stages took it.
        return _Ran(prepared.batch, flow, taken_at, ended_at - (began_at - taken_at), taken_at - prepared.at)

    def _profile(self, folder: str) -> BatchProfile:
        # Imported for the batches that are recorded: the others must not pay for profilers.
        from penstock.workers.batch_profile import BatchProfile

        profile = BatchProfile(self._loaded, Path(folder))
        profile.start()
        return profile

    def _write(self) -> None:
        while (ran := self._ran.get()) is not None:
            if isinstance(ran, runner.DeviceFault):
                self._give_up(ran)
                return
            try:
                done = self._complete(ran)
            except runner.DeviceFault as fault:
                self._give_up(fault)
                return
            self._wire.write(done)

    def _give_up(self, fault: runner.DeviceFault) -> None:
        """At once: what libraries do at a normal exit may wait for the device for ever."""
        self._wire.write(DeviceLost(fault.message, fault.broken))
        os._exit(_DEVICE_EXIT)

    def _complete(self, ran: _Ran) -> Done:
        if ran.flow is None:
            return Done(ran.batch, [], ran.began_at, ran.ended_at, 0.0, 0.0, 0.0)
        self._board.mark(ran.batch, Stage.ENCODING, time.monotonic())
        result = runner.complete(self._loaded, ran.flow)
        outcomes = [_outcome(outcome) for outcome in result.outcomes]
        return Done(
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


def _or_die(work: Callable[[], None]) -> None:
    """A thread that ended alone would leave a child that answers nothing; the end of the process is a crash: handled."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - also SystemExit from model code
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(_CRASH_EXIT)


def _load(order: Load) -> tuple[Loaded, Ready]:
    began = time.monotonic()
    loaded = load(
        order.source,
        order.model,
        version=order.version,
        device=order.device,
        threads=order.threads,
        options=order.options,
        task=order.task,
        runtime=order.runtime,
        max_batch_size=order.max_batch_size,
    )
    warm = _warmed(loaded, order, loaded.context.max_batch_size)
    info = loaded.info()
    return loaded, Ready(
        load_s=time.monotonic() - began,
        provider=loaded.provider,
        description=info.description,
        accepts=info.accepts,
        schemas=(info.input_schema, info.output_schema),
        warm=[Warm(run.size, run.first_s, run.run_s) for run in warm.runs],
        warm_origin=warm.origin,
        warm_note=warm.note,
        max_batch_size=loaded.declared.max_batch_size,
        max_wait_s=loaded.declared.max_wait_s,
    )


def _warmed(loaded: Loaded, order: Load, limit: int) -> warmup.WarmUp:
    if not order.warm_up:
        return warmup.WarmUp(note="switched off")
    return warmup.warm_up(loaded, warmup.sizes(limit, order.runtime.batch_buckets), budget_s=order.warm_budget_s)


def _settle_in(order: Load) -> None:
    """Cores and memory, before anything heavy is imported."""
    if order.cores:
        os.sched_setaffinity(0, order.cores)
    if order.memory_limit_bytes:
        # Private writable memory, not address space: model libraries reserve gigabytes of that and never touch them.
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory_limit_bytes, order.memory_limit_bytes))


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process when the supervisor's slot thread ends, however that comes about."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_CRASH_EXIT)


def main(argv: list[str]) -> int:
    wire_fd, board_fd, parent = map(int, argv)
    _die_with(parent)
    for fd in (wire_fd, board_fd):
        os.set_inheritable(fd, False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    wire = ChildWire(socket.socket(fileno=wire_fd))
    order = wire.read()
    if not isinstance(order, Load):
        return 0
    _settle_in(order)
    try:
        loaded, ready = _load(order)
    except Exception as error:  # noqa: BLE001 - model code may raise anything, and the supervisor reports it
        wire.write(LoadFailed(_told(error)))
        return 1
    # The model stays until the end: keep it out of every later collection.
    gc.collect()
    gc.freeze()
    wire.write(ready)
    Pipeline(wire, Board(board_fd), loaded).serve()
    return 0


def _told(error: Exception) -> str:
    return error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
