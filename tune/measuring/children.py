"""The workers' model processes (children) without a queue: started side by side, fed with batches, and read by one loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector

from penstock.errors import HandlerLoadError, PenstockError
from penstock.model_spec import LearnedCalls, ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import (
    BatchDone,
    DeviceLost,
    FromChild,
    Item,
    LoadFailed,
    Ready,
)
from penstock.workers.ipc.wire import ChildGone
from penstock.workers.slot.child.process import ChildProcess

_TURN_S = 0.2
_STOP_WITHIN_S = 2.0
_LOG_LINES = 5


class ChildLost(PenstockError):
    """A child ended while it was measured; the message says how."""

    kind = "child_lost"


class MeasuredChild:
    """One child, its batches under way, and the last lines of its log."""

    def __init__(self, process: ChildProcess) -> None:
        self.process = process
        self.ready: Ready | None = None
        self.under_way: dict[int, int] = {}
        self.last_lines: list[str] = []
        self.learned: LearnedCalls | None = None

    def give(self, items: Sequence[Item]) -> None:
        number = self.process.in_flight.run(items)
        self.under_way[number] = len(items)


class Children:
    """The children of one measurement; `started` makes them."""

    def __init__(self, members: Sequence[MeasuredChild]) -> None:
        self.members = members
        self._selector = DefaultSelector()
        for child in members:
            for fd, what in (
                (child.process.wire.fileno(), "wire"),
                (child.process.exit_fd, "exit"),
                (child.process.log_fd, "log"),
            ):
                self._selector.register(fd, EVENT_READ, (child, what))

    def await_ready(self, *, within_s: float) -> list[Ready]:
        """Raises `HandlerLoadError` if a child cannot load the model, or not in time."""
        until = time.monotonic() + within_s
        while not all(child.ready for child in self.members):
            if time.monotonic() > until:
                raise HandlerLoadError(f"the model did not load within {within_s:g} s")
            self.turn(lambda child, done: None)
        return [child.ready for child in self.members if child.ready]

    def turn(self, on_done: Callable[[MeasuredChild, BatchDone], None]) -> None:
        """Waits a moment for messages of the children, and calls `on_done` for each batch that is done."""
        for child in self.members:
            fd = child.process.wire.fileno()
            child.process.wire.flush()
            mask = EVENT_READ | (EVENT_WRITE if child.process.wire.has_unsent else 0)
            self._selector.modify(fd, mask, (child, "wire"))
        for key, mask in self._selector.select(_TURN_S):
            child, what = key.data
            if what == "log":
                self._read_log(child)
            elif what == "exit":
                self._read_log(child)
                raise ChildLost(f"its process {self._how_it_ended(child)}{_tail(child)}")
            elif mask & EVENT_READ:
                self._read_frames(child, on_done)

    def _read_frames(self, child: MeasuredChild, on_done: Callable[[MeasuredChild, BatchDone], None]) -> None:
        try:
            frames = child.process.wire.receive()
        except ChildGone:
            self._read_log(child)
            raise ChildLost(f"its process {self._how_it_ended(child)}{_tail(child)}") from None
        for frame in frames:
            self._take(child, frame, on_done)

    def _take(self, child: MeasuredChild, frame: FromChild, on_done: Callable[[MeasuredChild, BatchDone], None]) -> None:
        match frame:
            case Ready():
                child.ready = frame
            case LoadFailed(message):
                raise HandlerLoadError(message)
            case DeviceLost(message):
                raise ChildLost(f"its device fails every call: {message}")
            case BatchDone():
                child.under_way.pop(frame.batch, None)
                child.learned = frame.learned or child.learned
                on_done(child, frame)

    def _read_log(self, child: MeasuredChild) -> None:
        lines = child.process.read_log()
        if lines is None:
            if child.process.log_fd in self._selector.get_map():
                self._selector.unregister(child.process.log_fd)
            return
        child.last_lines = [*child.last_lines, *(line.text for line in lines)][-_LOG_LINES:]

    def _how_it_ended(self, child: MeasuredChild) -> str:
        child.process.has_ended(within_s=1.0)
        return child.process.how()

    def close(self) -> None:
        self._selector.close()
        for child in self.members:
            child.process.stop()
        until = time.monotonic() + _STOP_WITHIN_S
        for child in self.members:
            child.process.has_ended(within_s=max(0.0, until - time.monotonic()))
            child.process.close()


def _tail(child: MeasuredChild) -> str:
    return f"; its last log line: {child.last_lines[-1][:200]}" if child.last_lines else ""


@contextmanager
def started(spec: ModelSpec, pins: Sequence[Pin], *, within_s: float) -> Iterator[Children]:
    """One child per pin, with its model loaded and warm. Raises `HandlerLoadError`, `ChildLost`."""
    made: list[MeasuredChild] = []
    children = None
    try:
        for pin in pins:
            made.append(MeasuredChild(ChildProcess(spec, pin, max_batch_size=spec.policy.max_batch_size)))
        children = Children(made)
        children.await_ready(within_s=within_s)
        yield children
    finally:
        if children is not None:
            children.close()
        else:
            for child in made:
                child.process.close()
