"""A slot's child process as its supervisor sees it: started, worn, ended, restarted. Never blocks."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread

from penstock.backoff import Backoff
from penstock.model_spec import Limits, ModelSpec
from penstock.workers.devices import mps
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import LoadModel, StopChild
from penstock.workers.ipc.progress_page import ProgressPage
from penstock.workers.ipc.said import SaidLine, read_line
from penstock.workers.ipc.wire import SupervisorWire
from penstock.workers.slot.child import family
from penstock.workers.slot.child.environment import Mask, child_environment, read_variables
from penstock.workers.slot.child.in_flight import InFlight

_MEASURE_EVERY_S = 0.02
_WORN_SHARE = 0.8
_BACKOFF = Backoff(1.0, 60.0)
_MOST_FAULTS, _FAULT_WINDOW_S = 3, 60.0
_REST = Backoff(60.0, 600.0)


class Restarts:
    """How long to wait before the next start: not at all, then 1 s, 2 s, 4 s ... 60 s, until a batch succeeds."""

    def __init__(self) -> None:
        self.failures = 0
        self.total = 0

    def on_failure(self) -> float:
        delay = _BACKOFF.delay_s(self.failures)
        self.failures += 1
        self.total += 1
        return delay

    def on_success(self) -> None:
        self.failures = 0


class DeviceHealth:
    """Counts the faults of one slot's device. After three within a minute it rests for a minute, then two, four, ... ten.

    Moments are monotonic and passed in.
    """

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._rests = 0
        self._trusted_at = float("inf")

    def on_fault(self, now: float) -> float:
        """Seconds to rest, or 0.0. A minute without a fault after a rest clears the count."""
        if now > self._trusted_at:
            self._rests, self._recent, self._trusted_at = 0, [], float("inf")
        self._recent = [*(at for at in self._recent if now - at < _FAULT_WINDOW_S), now]
        if len(self._recent) < _MOST_FAULTS and not self._rests:
            return 0.0
        self._rests += 1
        rest_s = _REST.delay_s(self._rests)
        self._trusted_at = now + rest_s + _FAULT_WINDOW_S
        return rest_s


class Recycling:
    """Replaces one child between two batches, before a leak meets the memory limit inside one.

    Without a limit (`is_limited`) no child wears. A worn child is given no more shards. Once it has no shard left it `is_due`:
    it is given nothing more, and ends when it is empty.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.is_limited = limits.recycle_after_batches is not None or bool(limits.memory_limit_bytes)
        self._measure_at = float("-inf")
        # What came back, and how much of that counts as one batch: many where each item is one.
        self.runs = 0
        self.items_per_run = 1
        self.is_worn = False
        self.is_due = False
        self.due_at = float("-inf")

    def wear_out(self) -> None:
        """Have the child replaced, whatever its limits."""
        self.is_limited = self.is_worn = True

    def check(self, child: ChildProcess, now: float) -> bool:
        """Look at the child's wear. True when its replacement has just become due."""
        if not self.is_worn:
            self.is_worn = self._has_spent_its_runs() or self._is_bloated(child, now)
        # A shard may run for minutes. It ends first, and online batches continue meanwhile.
        if not self.is_worn or self.is_due or child.in_flight.has_shards:
            return False
        self.is_due, self.due_at = True, now
        return True

    def _has_spent_its_runs(self) -> bool:
        most = self._limits.recycle_after_batches
        return most is not None and self.batches >= most

    @property
    def batches(self) -> int:
        return self.runs // self.items_per_run

    def _is_bloated(self, child: ChildProcess, now: float) -> bool:
        limit = self._limits.memory_limit_bytes
        if not limit or now < self._measure_at:
            return False
        self._measure_at = now + _MEASURE_EVERY_S
        return child.resident_bytes() > limit * _WORN_SHARE


_OUT_OF_MEMORY_CODES = (137, -signal.SIGKILL)
_LOG_BYTES = 1 << 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BUFFER_BYTES = 1 << 20


class ChildProcess:
    """One child from its start to its end; a restart is another one. It ends with the thread that starts it, so its owner must.

    `in_flight`: the batches that the child has; `wire`: the way to it. Raises `ConfigError` if an environment variable of the
    model has no value.
    """

    def __init__(self, spec: ModelSpec, pin: Pin, *, max_batch_size: int) -> None:
        secrets = read_variables(spec.name, "secrets", spec.secrets, os.environ)
        variables = read_variables(spec.name, "env", spec.env, os.environ) | secrets
        self._mask = Mask(secrets.values()) if secrets else None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._page = ProgressPage.create()
        self.wire = SupervisorWire(ours, mask=self._mask.frame if self._mask else None)
        self.in_flight = InFlight(self._page, self.wire)
        self._mark = family.new_mark()
        self._process = self._spawn(spec.name, theirs, child_environment(os.environ, pin, variables))
        theirs.close()
        self.exit_fd = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        self.log_fd = self._process.stdout.fileno()
        os.set_blocking(self.log_fd, False)
        self._is_mps_client = bool(pin.uuid) and mps.is_used()
        self._ending: Thread | None = None
        self.started_at = time.monotonic()
        self._half_line = b""
        self.wire.send(_load_order(spec, pin, max_batch_size))

    def _spawn(self, model: str, theirs: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        fds = (theirs.fileno(), self._page.fileno())
        return subprocess.Popen(
            # The model's name is for people who look at a list of processes, and for `penstock bench`.
            [sys.executable, "-m", "penstock.workers.child", *map(str, fds), str(os.getpid()), model],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
            env={**environment, family.VARIABLE: self._mark},
            # A session of its own: Ctrl-C in the terminal reaches the supervisor only, which lets the batch end. The session is
            # a group too, so that what the handler starts can be ended with the child.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_log(self) -> list[SaidLine] | None:
        """The complete lines that the handler wrote since the last call; None at the end of the stream."""
        try:
            data = os.read(self.log_fd, _LOG_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        if len(self._half_line) > _LOG_BYTES:
            lines, self._half_line = [*lines, self._half_line], b""
        said = [found for line in lines if (found := read_line(line)).text.strip()]
        mask = self._mask
        return [line._replace(text=mask.text(line.text)) for line in said] if mask else said

    def resident_bytes(self) -> int:
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:
                return int(statm.read().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            # The child has just ended, which its `exit_fd` reports.
            return 0

    def overlap(self, at_once: int) -> InFlight:
        """The child has nothing yet, and runs `at_once` items side by side from now on."""
        # Most models run batches one after the other, and do without this.
        from penstock.workers.slot.child.overlap import ItemsInFlight

        self.in_flight = ItemsInFlight(self._page, self.wire, at_once=at_once)
        return self.in_flight

    def stop(self) -> None:
        """Ask the child to finish its batches and exit."""
        self.wire.send(StopChild())

    def kill(self) -> None:
        if not self._is_mps_client:
            self._kill()
        elif self._ending is None:
            # In a thread, because the daemon may take seconds to answer.
            self._ending = Thread(target=self._end_client, name="mps", daemon=True)
            self._ending.start()

    def _end_client(self) -> None:
        mps.end_client(self.pid)
        self._kill()

    def _kill(self) -> None:
        # Not by `Popen.kill`, which waits for a child that has ended: its pid must name its group until `has_ended`.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.exit_fd, signal.SIGKILL)

    def has_ended(self, *, within_s: float | None = 0.0) -> bool:
        """Whether the child has ended, after at most `within_s` (None: however long it takes). What it started ends with it."""
        if self._process.returncode is not None:
            return True
        waiting = select.poll()
        waiting.register(self.exit_fd, select.POLLIN)
        if not waiting.poll(None if within_s is None else within_s * 1_000):
            return False
        family.end_family(self.pid, self._mark)
        self._process.wait()
        return True

    def how(self) -> str:
        """How the child ended, in words for an operator."""
        return exit_in_words(self._process.returncode)

    def close(self) -> None:
        """Free all resources; end the process if it still runs."""
        if not self.has_ended():
            self.kill()
            self.has_ended(within_s=None)
        self.wire.close()
        self.in_flight.clear()
        self._page.close()
        if self._ending:
            self._ending.join()
        os.close(self.exit_fd)
        if self._process.stdout:
            self._process.stdout.close()


def exit_in_words(code: int | None) -> str:
    if code is None:
        return "still runs"
    if code in _OUT_OF_MEMORY_CODES:
        return "killed (SIGKILL): probably out of memory; set memory_limit_bytes or a smaller max_batch_size"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _load_order(spec: ModelSpec, pin: Pin, max_batch_size: int) -> LoadModel:
    return LoadModel(
        model=spec.name,
        version=spec.version,
        source=spec.source,
        device=pin.handler_device,
        threads=pin.threads,
        cores=pin.cores,
        max_batch_size=max_batch_size,
        memory_limit_bytes=spec.limits.memory_limit_bytes or 0,
        options=spec.options,
        task=spec.task,
        runtime=spec.runtime,
        warm_up=spec.warm_up,
        warm_budget_s=spec.limits.load_timeout_s / 2,
        max_stream_bytes=spec.limits.max_stream_bytes,
        requirements=spec.requirements,
        keep_tracebacks=spec.keep_tracebacks,
        loader=spec.loader,
        modules=spec.modules,
        told=(*spec.request_headers, *spec.query),
        max_run_s=spec.limits.max_run_s,
        input_urls=spec.input_urls,
        input_urls_ca=spec.input_urls_ca,
        # A child that prepares a batch for longer than `max_run_s` counts as hung.
        input_urls_s=min(10.0, spec.limits.max_run_s / 2),
    )
