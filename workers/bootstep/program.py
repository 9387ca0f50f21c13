"""The worker process as Celery's worker program sees it: its name, its logs, and what a second signal means."""

from __future__ import annotations

import logging
import secrets
import warnings
from typing import Any

from celery import signals
from celery.apps.worker import Worker
from celery.utils.nodenames import default_nodename

from penstock import logs


class WorkerProgram(Worker):
    """`app.Worker` of our Celery app, so `celery worker` and `penstock worker` are the same."""

    hostname: str

    def on_before_init(self, quiet: bool = False, **kwargs: Any) -> None:
        if self.hostname == default_nodename(None):
            # Two workers on one host must not share a name: remote control and Flower know them by it.
            host = self.hostname.partition("@")[2]
            self.hostname = f"penstock@{host}-{secrets.token_hex(3)}"
        # In a container the worker is root as a rule. Celery's warning is about pickled messages; we take JSON only.
        warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
        super().on_before_init(quiet=quiet, **kwargs)

    def setup_instance(self, **kwargs: Any) -> None:
        # Workers find each other in the store; Celery's own ways only cost a second at the start and a message per event.
        kwargs.update(without_mingle=True, without_gossip=True)
        super().setup_instance(**kwargs)
        signals.worker_shutting_down.connect(self._on_signal, weak=False)

    def _on_signal(self, **_: Any) -> None:
        if self.pool is None:
            return
        if self.pool.draining:
            # Asked a second time: do not wait for what runs.
            self.pool.hurry()
        else:
            self.pool.close_soon()

    def setup_logging(self, colorize: bool | None = None) -> bool:
        logs.configure(self.loglevel or logging.INFO)
        return True

    def emit_banner(self) -> None:
        """Nothing: the log says the same as data."""
