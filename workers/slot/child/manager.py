"""Keeps a slot's child alive: starts it, reads from it, ends it when it hangs, and reports the outcomes of its batches."""

from __future__ import annotations

from selectors import EVENT_READ, EVENT_WRITE, BaseSelector

import msgspec
import structlog

from penstock.errors import InternalError, PenstockError
from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import (
    BatchDone,
    DeviceLost,
    FromChild,
    ItemReports,
    LoadFailed,
    MetricSamples,
    Ready,
    ShardDone,
    WantFacts,
)
from penstock.workers.ipc.wire import ChildGone
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.ending import ChildEnd, DeviceHealth, Restarts
from penstock.workers.slot.child.events import (
    BatchLost,
    BatchRan,
    ChildExited,
    ChildReady,
    ChildUnloadable,
    Event,
    HandlerMeasured,
)
from penstock.workers.slot.child.in_flight import InFlight
from penstock.workers.slot.child.process import ChildProcess
from penstock.workers.slot.child.slot_child import Locate

log = structlog.get_logger(__name__)
CHILD_STARTED = "child_started"
CHILD_READY = "child_ready"
CHILD_UNLOADABLE = "child_unloadable"
CHILD_ENDED = "child_ended"
CHILD_KILLED = "child_killed"
CHILD_RECYCLED = "child_recycled"
DEVICE_LOST = "device_lost"
HANDLER_SAID = "handler_said"

STOP_WITHIN_S = 2.0
_LEAVES_WITHIN_S = 0.2
_LINE_CHARS = 256
# How often a slot looks whether its model has been fetched.
_FETCHING_LOOK_S = 0.2


class ChildManager:
    """Used by the slot's thread only. `state` is loading, ready or failed; `error` says why it failed.

    `in_flight`: the batches that the child has; empty between two children. Each child has an object of its own.
    """

    runs_model_code = True

    def __init__(self, spec: ModelSpec, pin: Pin, selector: BaseSelector, locate: Locate, *, max_batch_size: int) -> None:
        self._spec = spec
        self._locate = locate
        self._pin = pin
        self._selector = selector
        self._max_batch_size = max_batch_size
        self._child: ChildProcess | None = None
        self._start_at = float("-inf")
        # The slot does not read from the child, because the store has not received its earlier reports.
        self.is_paused = False
        self._end = ChildEnd(spec.limits)
        self._health = DeviceHealth()
        self.in_flight = InFlight()
        self.restarts = Restarts()
        self.state = "loading"
        self.error = ""
        self.load_s = self.start_s = 0.0
        self.provider = ""
        # Whether the handler has asked for the facts of each job.
        self.asks = False
        # Where a model that was fetched came from.
        self.source = ""

    # The child's life.

    def tend(self, now: float) -> list[Event]:
        """Start the child when it is due, and end it when it hangs or is worn."""
        if self._child is None:
            return self._start(now) if now >= self._start_at else []
        if not self.end_if_hung(now) and self.state == "ready":
            self._recycle(self._child, now)
        return []

    def end_if_hung(self, now: float) -> bool:
        """End the child if it is past its time limit. A slot that drains needs only this part of `tend`."""
        if self._child is None or self._end.is_hung or self.is_paused:
            return False
        if now <= self._limit_at(self._child):
            return False
        self._end.on_hung(is_ready=self.state == "ready")
        log.warning(CHILD_KILLED, model=self._spec.name, pid=self._child.pid, reason="past its time limit")
        self._child.kill()
        return True

    def reload(self, now: float) -> None:
        """Replace the child, because its code has changed: a ready one once it has nothing in flight, any other at once."""
        self._start_at = now
        if self._child is not None:
            self._end.recycling.wear_out()
            if self.state != "ready":
                self._end.recycling.is_due, self._end.recycling.due_at = True, now
                self._child.kill()

    def _recycle(self, child: ChildProcess, now: float) -> None:
        recycling = self._end.recycling
        if not recycling.is_limited:
            return
        if recycling.check(child, now):
            log.info(CHILD_RECYCLED, model=self._spec.name, pid=child.pid, batches=recycling.batches)
        if recycling.is_due and child.in_flight.is_empty:
            child.stop()
            self.state = "loading"

    def due_at(self, *, is_draining: bool) -> float:
        """When `tend` has something to do, or `end_if_hung` of a slot that drains."""
        if self._child is None:
            return float("inf") if is_draining else self._start_at
        return float("inf") if self.is_paused else self._limit_at(self._child)

    def _limit_at(self, child: ChildProcess) -> float:
        end, limits = self._end, self._spec.limits
        if end.is_hung or end.recycling.is_due:
            return float("inf") if end.is_hung else max(end.recycling.due_at, child.in_flight.alive_at) + limits.max_run_s
        is_ready = self.state == "ready"
        return child.in_flight.limit_at(limits.max_run_s) if is_ready else child.started_at + limits.load_timeout_s

    def _start(self, now: float) -> list[Event]:
        try:
            located = self._locate(self._spec)
            if located is None:
                self._start_at = now + _FETCHING_LOOK_S
                return []
            spec, self.source = located
            self._child = child = ChildProcess(spec, self._pin, max_batch_size=self._max_batch_size)
        except PenstockError as error:
            # The missing file may be mounted later, and a network may come back.
            self._start_at = now + self.restarts.on_failure()
            return [self._on_unloadable(f"{error.message}. {error.hint}" if error.hint else error.message)]
        child.watch(self._selector)
        self.in_flight = child.in_flight
        self._end, self.is_paused = ChildEnd(self._spec.limits), False
        if self.state != "failed":
            # A model that could not be loaded stays failed for readers until it is loaded: a retry changes nothing for them.
            self.state = "loading"
        placed = {"device": self._pin.device, "cores": self._pin.cores}
        log.info(CHILD_STARTED, model=self._spec.name, version=self._spec.version, pid=child.pid, **placed)
        return []

    def _on_unloadable(self, message: str) -> Event:
        self.state, self.error = "failed", message
        log.error(CHILD_UNLOADABLE, model=self._spec.name, version=self._spec.version, error=message)
        return ChildUnloadable(message)

    @property
    def is_taking(self) -> bool:
        """Whether a batch may be given to the child."""
        return self.state == "ready" and not self._end.recycling.is_due

    @property
    def is_taking_shards(self) -> bool:
        return self.is_taking and not self.is_worn

    @property
    def is_worn(self) -> bool:
        """Whether the child will be replaced soon."""
        return self._end.recycling.is_worn

    @property
    def pid(self) -> int:
        """0 between two children. Safe to call from any thread."""
        child = self._child
        return child.pid if child is not None else 0

    # What the child says.

    def handle(self, source: str, mask: int, now: float) -> list[Event]:
        """What came of a ready file descriptor: `wire`, `exit` or `log`."""
        if self._child is None:
            return []
        if source == "log":
            self._forward_log(self._child)
            return []
        if source == "exit":
            return [*self._receive(self._child, now), *self._on_exit(self._child, now)]
        if mask & EVENT_WRITE:
            self._child.flush(is_paused=self.is_paused)
        return self._receive(self._child, now) if mask & EVENT_READ else []

    def _receive(self, child: ChildProcess, now: float) -> list[Event]:
        try:
            frames = child.wire.receive()
        except ChildGone:
            # The child may have closed the wire and live on; only its exit counts.
            child.unwatch(child.wire.fileno())
            if not (self._end.why or self._end.recycling.is_due or child.has_ended(within_s=_LEAVES_WITHIN_S)):
                self._end.why = "killed: it closed its connection and lived on"
            child.kill()
            return []
        except (msgspec.DecodeError, InternalError) as error:
            log.error(CHILD_KILLED, model=self._spec.name, pid=child.pid, reason=f"unreadable answer: {error}")
            child.unwatch(child.wire.fileno())
            self._end.why = "killed: its answer could not be read"
            child.kill()
            return []
        return [event for frame in frames if (event := self._event(child, frame, now)) is not None]

    def _event(self, child: ChildProcess, frame: FromChild, now: float) -> Event | None:
        match frame:
            case BatchDone():
                self._end.recycling.runs += 1
                return self._came_back(child.in_flight.on_batch_done(frame, now))
            case ItemReports() | WantFacts():
                return self._on_item(child, frame, now)
            case ShardDone(number, done, calls):
                self._end.recycling.runs += calls * self._end.recycling.items_per_run
                return self._came_back(child.in_flight.on_shard_done(number, done))
            case Ready():
                return self._on_ready(child, frame, now)
            case MetricSamples(samples):
                return HandlerMeasured(samples)
            case LoadFailed(message):
                self._end.why = "stopped after the failed load"
                return self._on_unloadable(message)
            case DeviceLost(message):
                self._end.fault, self._end.why = frame, f"its device {self._pin.device} fails every call: {message}"
                log.error(DEVICE_LOST, model=self._spec.name, pid=self.pid, device=self._pin.device, error=message)
                return None

    def _on_item(self, child: ChildProcess, frame: ItemReports | WantFacts, now: float) -> Event | None:
        if isinstance(frame, ItemReports):
            return child.in_flight.on_said(frame, now)
        self.asks = True
        child.in_flight.tell_facts(frame.batch)
        child.flush(is_paused=self.is_paused)
        return None

    def _came_back(self, event: BatchRan | BatchLost | None) -> Event | None:
        if isinstance(event, BatchRan) and self.restarts.failures:
            self.restarts.on_success()
        return event

    def _on_ready(self, child: ChildProcess, ready: Ready, now: float) -> Event:
        self.state, self.error, self.asks = "ready", "", ready.asks
        if ready.at_once:
            self._overlap(child, ready.at_once)
        self.load_s, self.start_s, self.provider = ready.load_s, now - child.started_at, ready.provider
        slowest = max(ready.warm, key=lambda run: run.first_s, default=None)
        log.info(
            CHILD_READY,
            model=self._spec.name,
            version=self._spec.version,
            pid=self.pid,
            load_s=round(ready.load_s, 3),
            warmed=ready.warm_note or f"{len(ready.warm)} batch sizes from the {ready.warm_origin}",
            first_call_s=round(slowest.first_s, 4) if slowest else None,
            first_call_size=slowest.size if slowest else None,
        )
        for event, reason in ready.warnings:
            log.warning(event, model=self._spec.name, version=self._spec.version, reason=reason)
        return ChildReady(ready)

    def _overlap(self, child: ChildProcess, at_once: int) -> None:
        """The child runs items side by side. They come with their facts: a task that asks for them would hold up all others."""
        self.in_flight = child.overlap(at_once)
        self.asks = True
        self._end.recycling.items_per_run = at_once

    def _forward_log(self, child: ChildProcess) -> None:
        lines = child.read_log()
        if lines is None:
            child.unwatch(child.log_fd)
            return
        for line in lines:
            whose = child.in_flight.whose(line)
            log.info(HANDLER_SAID, model=self._spec.name, pid=child.pid, line=line.text[:_LINE_CHARS], **whose)

    # What the child is given.

    def give(self, batch: Batch, now: float) -> None:
        assert self._child is not None
        self._child.in_flight.give(batch, now)
        self._child.flush(is_paused=self.is_paused)

    def pause(self, now: float, *, is_paused: bool) -> None:
        """Stop or resume reading from the child. The pause is not the child's fault: the time limit counts from then on."""
        self.is_paused = is_paused
        if self._child is not None:
            self._child.in_flight.on_paused(now)
            self._child.flush(is_paused=is_paused)

    # The child's end.

    def _on_exit(self, child: ChildProcess, now: float) -> list[Event]:
        child.has_ended(within_s=1.0)
        how = self._end.why or child.how()
        self._forward_log(child)
        events: list[Event] = [BatchLost(batch, cause, how) for batch, cause in self._end.causes(child.in_flight)]
        events.append(ChildExited(self._end.reason(is_ready=self.state == "ready")))
        if self._end.recycling.is_due:
            self._start_at = now
            self._forget(child)
            return events
        if self.state == "loading":
            ending = f"was {self._end.why}" if self._end.why else f"{how} while it loaded the model"
            self.state, self.error = "failed", f"the process {ending}"
            events.append(ChildUnloadable(self.error))
        elif self.state == "ready":
            self.state = "loading"
        self._start_at = now + max(self.restarts.on_failure(), self._rest_s(now, how))
        if self.state == "failed" and self._end.fault:
            events.append(ChildUnloadable(self.error))
        log.warning(CHILD_ENDED, model=self._spec.name, pid=child.pid, how=how, restart_in_s=round(self._start_at - now, 1))
        self._forget(child)
        return events

    def _rest_s(self, now: float, how: str) -> float:
        """How long the device is left alone before the next try."""
        rest_s = self._health.on_fault(now) if self._end.fault else 0.0
        if rest_s:
            self.state, self.error = "failed", f"device {self._pin.device} is unhealthy; next try in {rest_s:.0f} s: {how}"
        return rest_s

    def _forget(self, child: ChildProcess) -> None:
        child.close()
        self._child = None

    def close(self) -> None:
        """Let the child finish and exit, or end it; batches still in flight are given up."""
        child = self._child
        if child is None:
            return
        if self.state == "ready" and child.in_flight.is_empty and not self._end.is_hung:
            child.stop()
            child.has_ended(within_s=STOP_WITHIN_S)
        self._forward_log(child)
        self._forget(child)
