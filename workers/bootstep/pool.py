"""Celery's pool interface over our fleet: the children are the pool's processes, and no Celery task passes through it."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery.concurrency.base import BasePool
from celery.worker import state as worker_state

from penstock.broker.protocol import membership
from penstock.errors import ConfigError, InternalError
from penstock.workers.__main__ import CONFIG_EXIT
from penstock.workers.fleet.fleet import Fleet

_LOOK_EVERY_S = 0.1


class DevicePool(BasePool):
    """The app names it in `worker_pool`. Celery calls all of its methods from the worker's main thread."""

    fleet: Fleet | None = None
    _wake_fd: int | None = None

    def on_start(self) -> None:
        _, hostname = self.options.get("initargs") or (None, "penstock")
        membership.enter("worker")
        fleet = Fleet(self.app.settings, name=hostname, app=self.app)
        try:
            fleet.start()
        except ConfigError as error:
            sys.stderr.write("\n".join(filter(None, [error.message, error.hint])) + "\n")
            # Celery would log any other error with its traceback, and exit with 1.
            raise SystemExit(CONFIG_EXIT) from error
        self.fleet = fleet

    def on_apply(self, *_: Any, **__: Any) -> Any:
        raise InternalError("a Celery task reached the device pool; jobs are claimed, never applied")

    @property
    def draining(self) -> bool:
        return self.fleet is not None and self.fleet.draining

    def hurry(self) -> None:
        if self.fleet is not None:
            self.fleet.hurry()

    def register_with_event_loop(self, loop: Any) -> None:
        if self._wake_fd is None:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._wake_fd, os.eventfd_read, self._wake_fd)

    def close_soon(self) -> None:
        """For a signal handler: stop taking jobs now, and wake Celery's loop, which would notice the signal up to 2 s late."""
        self.on_close()
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def on_close(self) -> None:
        if self.fleet is not None:
            self.fleet.drain()

    def on_stop(self) -> None:
        """Warm shutdown: returns when all running jobs have ended or were given back."""
        if self.fleet is None:
            return
        self.fleet.drain()
        while not self.fleet.wait(_LOOK_EVERY_S):
            if worker_state.should_terminate not in (None, False):
                self.fleet.hurry()
        self.fleet.stop()

    def on_terminate(self) -> None:
        self.hurry()
        self.on_stop()

    def grow(self, n: int = 1) -> int:
        """How many slots were added."""
        return self.fleet.grow(n) if self.fleet is not None else 0

    def shrink(self, n: int = 1) -> int:
        """How many slots were removed."""
        return self.fleet.shrink(n) if self.fleet is not None else 0

    @property
    def num_processes(self) -> int:
        return len(self.fleet.slots) if self.fleet is not None else 0

    def _get_info(self) -> dict[str, Any]:
        slots = [slot.facts.info() for slot in self.fleet.slots] if self.fleet is not None else []
        return {
            **super()._get_info(),
            "max-concurrency": self.num_processes,
            "processes": [info.pid for info in slots],
            "supervisor": os.getpid(),
            "slots": [{"model": info.model, "version": info.version, "state": info.state, "pid": info.pid} for info in slots],
        }
