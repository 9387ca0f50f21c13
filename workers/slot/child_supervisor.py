"""Keeps a slot's child alive: starts and restarts it, hears it, ends it when it hangs, says what became of its batches."""

from __future__ import annotations

from selectors import EVENT_READ, EVENT_WRITE, BaseSelector

import msgspec
import structlog

from penstock.errors import InternalError
from penstock.job_id import JobId
from penstock.model_spec import ModelSpec
from penstock.workers.devices.health import DeviceHealth
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import BatchDone, ChildGone, DeviceLost, FromChild, Item, LoadFailed, Ready, ShardDone
from penstock.workers.slot.batcher import Batch, ChildLoad
from penstock.workers.slot.child_events import BatchLost, BatchRan, Cause, ChildExited, ChildReady, ChildUnloadable, Event
from penstock.workers.slot.child_process import ChildProcess, Restarts
from penstock.workers.slot.in_flight import InFlight

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
_MEASURE_EVERY_S = 0.02
_WORN_SHARE = 0.8


class ChildSupervisor:
    """Used by the slot's thread only. `state` is loading, ready or failed; `error` says why. `wearing`: to be replaced soon."""

    def __init__(self, spec: ModelSpec, pin: Pin, selector: BaseSelector, *, max_batch_size: int) -> None:
        self._spec = spec
        self._pin = pin
        self._selector = selector
        self._max_batch_size = max_batch_size
        self._child: ChildProcess | None = None
        self._custody = InFlight()
        self._start_at = float("-inf")
        self._hung = False
        # Why this child is ended by us; its exit alone would look like a kill for want of memory.
        self._why = ""
        self.wearing = self._recycled = False
        self._recycled_at = self._measure_at = float("-inf")
        self._runs = 0
        self._fault: DeviceLost | None = None
        self._health = DeviceHealth()
        self.restarts = Restarts()
        self.state = "loading"
        self.error = ""
        self.load_s = 0.0
        self.provider = ""

    # Its life.

    def tend(self, now: float) -> None:
        """Start the child when it is due, end it when it hangs."""
        if self._child is None:
            if now >= self._start_at:
                self._start(now)
        elif not self._hung and now > self._limit_at():
            self._hung, self._why = True, self._late()
            log.warning(CHILD_KILLED, model=self._spec.name, pid=self._child.pid, reason="past its time limit")
            self._child.kill()
        elif self._worn(self._child, now) and self._custody.empty and self.state == "ready":
            self._child.stop()
            self.state = "loading"

    def _worn(self, child: ChildProcess, now: float) -> bool:
        """Whether the child is to be replaced between two batches, before a leak meets its limit inside one.

        Nothing more is given to it then, and it goes when it is empty.
        """
        if not self.wearing and self.state == "ready":
            self.wearing = self._runs_spent() or self._bloated(child, now)
        # A shard may run for minutes. It ends first, and online batches go on meanwhile.
        if self.wearing and not self._recycled and not self._custody.busy(child).shards:
            self._recycled, self._recycled_at = True, now
            log.info(CHILD_RECYCLED, model=self._spec.name, pid=child.pid, batches=self._runs)
        return self._recycled

    def _runs_spent(self) -> bool:
        most = self._spec.limits.recycle_after_batches
        return most is not None and self._runs >= most

    def _bloated(self, child: ChildProcess, now: float) -> bool:
        limit = self._spec.limits.memory_limit_bytes
        if not limit or now < self._measure_at:
            return False
        self._measure_at = now + _MEASURE_EVERY_S
        return child.resident_bytes() > limit * _WORN_SHARE

    def _late(self) -> str:
        limits = self._spec.limits
        if self.state == "ready":
            return f"killed: ran longer than {limits.max_run_s:g} s"
        return f"killed: loaded for longer than {limits.load_timeout_s:g} s"

    def due_at(self) -> float:
        """When `tend` has something to do."""
        return self._start_at if self._child is None else self._limit_at()

    def _limit_at(self) -> float:
        if self._hung:
            return float("inf")
        if self._recycled:
            return self._recycled_at + self._spec.limits.max_run_s
        if self.state != "ready":
            assert self._child is not None
            return self._child.started_at + self._spec.limits.load_timeout_s
        assert self._child is not None
        return self._custody.limit_at(self._child, self._spec.limits.max_run_s)

    def _start(self, now: float) -> None:
        self._child = child = ChildProcess(self._spec, self._pin, max_batch_size=self._max_batch_size)
        self._hung = self.wearing = self._recycled = False
        self._runs, self._fault, self._why = 0, None, ""
        if self.state != "failed":
            # A model that could not be loaded stays failed for readers until it is: a retry is no news.
            self.state = "loading"
        for fd, name in ((child.wire.fileno(), "wire"), (child.exit_fd, "exit"), (child.log_fd, "log")):
            self._selector.register(fd, EVENT_READ, name)
        log.info(
            CHILD_STARTED,
            model=self._spec.name,
            version=self._spec.version,
            pid=child.pid,
            device=self._pin.device,
            cores=self._pin.cores,
        )

    @property
    def taking(self) -> bool:
        """Whether a batch may be given to it."""
        return self.state == "ready" and not self._recycled

    @property
    def taking_shards(self) -> bool:
        return self.taking and not self.wearing

    @property
    def pid(self) -> int:
        """0 between two lives. Safe to call from any thread."""
        child = self._child
        return child.pid if child is not None else 0

    # What it says.

    def handle(self, source: str, mask: int, now: float) -> list[Event]:
        """What came of a ready file descriptor: `wire`, `exit` or `log`."""
        if self._child is None:
            return []
        if source == "log":
            self._log(self._child)
            return []
        if source == "exit":
            return [*self._hear(self._child, now), *self._bury(self._child, now)]
        if mask & EVENT_WRITE:
            self._flush(self._child)
        return self._hear(self._child, now) if mask & EVENT_READ else []

    def _hear(self, child: ChildProcess, now: float) -> list[Event]:
        try:
            frames = child.receive()
        except ChildGone:
            # It may have closed the wire and live on; its exit is what counts.
            self._mute(child.wire.fileno())
            if not (self._why or self._recycled or child.ended(within_s=_LEAVES_WITHIN_S)):
                self._why = "killed: it closed its connection and lived on"
            child.kill()
            return []
        except (msgspec.DecodeError, InternalError) as error:
            log.error(CHILD_KILLED, model=self._spec.name, pid=child.pid, reason=f"unreadable answer: {error}")
            self._mute(child.wire.fileno())
            self._why = "killed: its answer could not be read"
            child.kill()
            return []
        return [event for frame in frames if (event := self._event(frame, now)) is not None]

    def _event(self, frame: FromChild, now: float) -> Event | None:
        match frame:
            case BatchDone():
                return self._done(frame, now)
            case ShardDone(number, done, calls):
                return self._shard_done(number, done, calls)
            case Ready():
                return self._up(frame)
            case LoadFailed(message):
                self.state, self.error, self._why = "failed", message, "stopped after the failed load"
                log.error(CHILD_UNLOADABLE, model=self._spec.name, version=self._spec.version, error=message)
                return ChildUnloadable(message)
            case DeviceLost(message):
                self._fault, self._why = frame, f"its device {self._pin.device} fails every call: {message}"
                log.error(DEVICE_LOST, model=self._spec.name, pid=self.pid, device=self._pin.device, error=message)
                return None

    def _done(self, done: BatchDone, now: float) -> Event | None:
        self._runs += 1
        return self._came_back(self._custody.done(done, now))

    def _shard_done(self, number: int, done: BatchDone, calls: int) -> Event | None:
        self._runs += calls
        return self._came_back(self._custody.shard_done(number, done))

    def _came_back(self, event: BatchRan | BatchLost | None) -> Event | None:
        if isinstance(event, BatchRan):
            self.restarts.succeeded()
        return event

    def _up(self, ready: Ready) -> Event:
        self.state, self.error = "ready", ""
        self.load_s, self.provider = ready.load_s, ready.provider
        dearest = max(ready.warm, key=lambda run: run.first_s, default=None)
        log.info(
            CHILD_READY,
            model=self._spec.name,
            version=self._spec.version,
            pid=self.pid,
            load_s=round(ready.load_s, 3),
            warmed=ready.warm_note or f"{len(ready.warm)} batch sizes from the {ready.warm_origin}",
            first_call_s=round(dearest.first_s, 4) if dearest else None,
            first_call_size=dearest.size if dearest else None,
        )
        return ChildReady(ready)

    def _log(self, child: ChildProcess) -> None:
        lines = child.read_log()
        if lines is None:
            self._mute(child.log_fd)
            return
        for line in lines:
            log.info(HANDLER_SAID, model=self._spec.name, pid=child.pid, line=line[:_LINE_CHARS])

    # Its batches.

    def give(self, held: Batch, items: list[Item], now: float) -> None:
        assert self._child is not None
        self._custody.give(self._child, held, items, now)
        self._flush(self._child)

    def _flush(self, child: ChildProcess) -> None:
        child.wire.flush()
        self._selector.modify(child.wire.fileno(), EVENT_READ | (EVENT_WRITE if child.wire.stuck else 0), "wire")

    def held(self) -> list[Batch]:
        """The batches whose outcome is awaited. Safe to call from any thread."""
        return self._custody.held()

    def busy(self) -> ChildLoad:
        """What the child has to do, batches that nobody awaits included."""
        return self._custody.busy(self._child)

    def recall(self) -> list[Batch]:
        """Take back the batches that have not begun to run; the child will skip them."""
        return self._custody.recall(self._child)

    def recall_shards(self) -> list[Batch]:
        """Take back all shards, also those that have begun."""
        return self._custody.recall_shards(self._child)

    def recall_waiting_shards(self) -> list[Batch]:
        """Take back the shards that have not begun."""
        return self._custody.recall_waiting_shards(self._child)

    def rows_done(self) -> dict[JobId, int]:
        """How far each shard is."""
        return self._custody.rows_done(self._child)

    def disown(self) -> list[Batch]:
        """Give up every batch; what the child still says of them is ignored."""
        return self._custody.disown(self._child)

    # Its end.

    def _bury(self, child: ChildProcess, now: float) -> list[Event]:
        child.ended(within_s=1.0)
        how = self._why or child.how()
        self._log(child)
        events: list[Event] = [BatchLost(held, cause, how) for held, cause in self._blame(child)]
        events.append(ChildExited(self._exit()))
        if self._recycled:
            self._start_at = now
            self._forget(child)
            return events
        if self.state == "loading":
            told = f"was {self._why}" if self._why else f"{how} while it loaded the model"
            self.state, self.error = "failed", f"the process {told}"
            events.append(ChildUnloadable(self.error))
        elif self.state == "ready":
            self.state = "loading"
        self._start_at = now + max(self.restarts.failed(), self._rest_s(now, how))
        if self.state == "failed" and self._fault:
            events.append(ChildUnloadable(self.error))
        log.warning(CHILD_ENDED, model=self._spec.name, pid=child.pid, how=how, restart_in_s=round(self._start_at - now, 1))
        self._forget(child)
        return events

    def _rest_s(self, now: float, how: str) -> float:
        """How long the device is left alone before the next try."""
        rest_s = self._health.fault(now) if self._fault else 0.0
        if rest_s:
            self.state, self.error = "failed", f"device {self._pin.device} is unhealthy; next try in {rest_s:.0f} s: {how}"
        return rest_s

    def _exit(self) -> str:
        if self._recycled or self._hung:
            return "recycled" if self._recycled else "timeout"
        if self._fault:
            return "device"
        return "crashed" if self.state == "ready" else "unloadable"

    def _blame(self, child: ChildProcess) -> list[tuple[Batch, Cause]]:
        suspects = self._custody.suspects(child, hung=self._hung)
        return [(held, self._cause(held) if suspect else Cause.UNSTARTED) for held, suspect in suspects]

    def _cause(self, held: Batch) -> Cause:
        if self._fault and self._fault.broken:
            return Cause.UNSTARTED
        return Cause.TIMED_OUT if self._hung and held.size == 1 else Cause.CRASHED

    def _forget(self, child: ChildProcess) -> None:
        for fd in (child.wire.fileno(), child.exit_fd, child.log_fd):
            self._mute(fd)
        child.close()
        self._child = None
        self._custody.clear()

    def _mute(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def close(self) -> None:
        """Let the child finish and exit, or end it; what it holds is given up."""
        child = self._child
        if child is None:
            return
        if self.state == "ready" and self._custody.empty and not self._hung:
            child.stop()
            child.ended(within_s=STOP_WITHIN_S)
        self._log(child)
        self._forget(child)
