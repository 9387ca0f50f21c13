"""A slot's child process as its supervisor sees it: started, listened to, ended. Never blocks."""

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
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from threading import Thread

from penstock.model_spec import ModelSpec
from penstock.workers.devices import mps
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import LoadModel, StopChild
from penstock.workers.ipc.progress_page import ProgressPage
from penstock.workers.ipc.said import SaidLine, read_line
from penstock.workers.ipc.wire import SupervisorWire
from penstock.workers.slot.child import family
from penstock.workers.slot.child.environment import Mask, child_environment, read_variables
from penstock.workers.slot.child.in_flight import InFlight

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
        self._selector: BaseSelector | None = None
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
        family.WATCHER.note(self.pid)
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
        said = [read for line in lines if (read := read_line(line)).text.strip()]
        mask = self._mask
        return [line._replace(text=mask.text(line.text)) for line in said] if mask else said

    def watch(self, selector: BaseSelector) -> None:
        """Have the selector report what the child says (`wire`), its end (`exit`) and what it prints (`log`)."""
        self._selector = selector
        for fd, name in ((self.wire.fileno(), "wire"), (self.exit_fd, "exit"), (self.log_fd, "log")):
            selector.register(fd, EVENT_READ, name)

    def flush(self, *, is_paused: bool = False) -> None:
        """Send as much as the wire takes now; the selector reports when it takes more. `is_paused`: nothing is read."""
        assert self._selector is not None
        self.wire.flush()
        wanted = (0 if is_paused else EVENT_READ) | (EVENT_WRITE if self.wire.has_unsent else 0)
        fd = self.wire.fileno()
        if not wanted:
            self.unwatch(fd)
        elif fd in self._selector.get_map():
            self._selector.modify(fd, wanted, "wire")
        else:
            self._selector.register(fd, wanted, "wire")

    def unwatch(self, fd: int) -> None:
        if self._selector is not None and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def resident_bytes(self) -> int:
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:
                return int(statm.read().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            # The child has just ended, which its `exit_fd` reports.
            return 0

    def overlap(self, at_once: int) -> InFlight:
        """The child has nothing yet, and runs `at_once` items side by side from now on."""
        # Imported here, because most models run batches one after the other.
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
        family.WATCHER.note(-self.pid)
        return True

    def how(self) -> str:
        """How the child ended, in words for an operator."""
        return exit_in_words(self._process.returncode)

    def close(self) -> None:
        """Free all resources; end the process if it still runs."""
        for fd in (self.wire.fileno(), self.exit_fd, self.log_fd):
            self.unwatch(fd)
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
