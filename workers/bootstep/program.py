"""Celery's worker program with our defaults: its node name, its log, and what a second signal does."""

from __future__ import annotations

import logging
import secrets
import sys
import warnings
from typing import Any

from celery import signals
from celery.apps.worker import Worker
from celery.utils.nodenames import default_nodename

from penstock import logs
from penstock.workers.__main__ import CONFIG_EXIT
from penstock.workers.bootstep.pool import DevicePool
from penstock.workers.bootstep.worker_options import refusals


class WorkerProgram(Worker):
    """Our Celery app names it as `app.Worker`, so that `celery worker` and `penstock worker` are the same program."""

    hostname: str

    def on_before_init(self, quiet: bool = False, **kwargs: Any) -> None:
        self._refuse_options(kwargs)
        if self.hostname == default_nodename(None):
            # Two workers on one host need different names: remote control and Flower address them by name.
            host = self.hostname.partition("@")[2]
            self.hostname = f"penstock@{host}-{secrets.token_hex(3)}"
        # In a container the worker usually runs as root. Celery's warning is about pickled messages, and we accept only JSON.
        warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
        super().on_before_init(quiet=quiet, **kwargs)

    def _refuse_options(self, options: dict[str, Any]) -> None:
        conf = self.app.conf
        found = refusals(
            options, concurrency=conf.worker_concurrency, prefetch=conf.worker_prefetch_multiplier, pool=DevicePool
        )
        if found:
            sys.stderr.write("\n".join([*found, ""]))
            raise SystemExit(CONFIG_EXIT)

    def setup_instance(self, **kwargs: Any) -> None:
        # Workers find each other in the store. Mingle would cost a second at the start, and gossip a message per event.
        kwargs.update(without_mingle=True, without_gossip=True)
        super().setup_instance(**kwargs)
        signals.worker_shutting_down.connect(self._on_signal, weak=False)

    def _on_signal(self, **_: Any) -> None:
        if self.pool is None:
            return
        if self.pool.draining:
            # The second signal: do not wait for what runs.
            self.pool.hurry()
        else:
            self.pool.close_soon()

    def setup_logging(self, colorize: bool | None = None) -> bool:
        logs.configure(self.loglevel or logging.INFO)
        return True

    def emit_banner(self) -> None:
        """No banner: the log has the same facts as data."""
