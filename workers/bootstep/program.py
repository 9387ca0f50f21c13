"""Celery's worker program with our defaults: its node name, its log, and what a second signal does."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import structlog
from celery import signals
from celery.apps.worker import Worker
from celery.utils.nodenames import default_nodename

from penstock import logs
from penstock.workers.__main__ import CONFIG_EXIT
from penstock.workers.bootstep.pool import DevicePool

log = structlog.get_logger(__name__)
END_CUT_SHORT = "end_cut_short"
# How long after its grace a worker may end. Orchestrators give it ten seconds.
_LATE_S = 8.0

# D82: docs/design/workers-and-devices.md. Options of `celery worker` that cannot work here, and what to use instead.
_IN_MODEL = "set {} in [models.NAME] of penstock.toml"
_INSTEAD = {
    "autoscale": (
        "--autoscale",
        "a model's settings scale its slots, and Celery does not; or use `celery control pool_grow`",
    ),
    "queues": ("-Q", "a worker serves the models of its settings; give each worker a penstock.toml with its models"),
    "exclude_queues": ("-X", "a worker serves the models of its settings; give each worker a penstock.toml with its models"),
    "time_limit": ("--time-limit", _IN_MODEL.format("max_run_s")),
    "soft_time_limit": ("--soft-time-limit", _IN_MODEL.format("max_run_s")),
    "max_tasks_per_child": ("--max-tasks-per-child", _IN_MODEL.format("recycle_after_batches")),
    "max_memory_per_child": ("--max-memory-per-child", _IN_MODEL.format("memory_limit_bytes")),
    "pool_start_method": ("--pool-start-method", "models run in processes of their own, which are not forked from the worker"),
    "purge": ("--purge", "the queues hold stored jobs; use `penstock jobs cancel`"),
    "beat": ("-B", "run `celery beat` of your own app as a process of its own"),
}


def refusals(options: Mapping[str, Any], *, concurrency: int, prefetch: int, pool: object) -> list[str]:
    """One sentence per refused option; the other arguments are the defaults of Celery's command line."""
    refused = [f"{option}: {instead}" for name, (option, instead) in _INSTEAD.items() if options.get(name)]
    if options.get("concurrency") not in (None, concurrency):
        refused.append(f"-c: a worker has the slots of its models; {_IN_MODEL.format('slots or slots_per_device')}")
    if options.get("prefetch_multiplier") not in (None, prefetch):
        refused.append(f"--prefetch-multiplier: a slot claims what it can run; {_IN_MODEL.format('max_batch_size')}")
    if options.get("pool") not in (None, pool):
        refused.append("-P: models run in processes pinned to their devices, and no other pool can run them; leave it out")
    return refused


def _leave(*_: object) -> None:
    """Models end with this process, and other workers take back their jobs."""
    # The signal may have come while this thread writes a line and holds the log: the next alarm then ends the process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(1)
    try:
        log.error(END_CUT_SHORT)
    finally:
        os._exit(1)


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
        refused = refusals(
            options, concurrency=conf.worker_concurrency, prefetch=conf.worker_prefetch_multiplier, pool=DevicePool
        )
        if refused:
            sys.stderr.write("\n".join([*refused, ""]))
            raise SystemExit(CONFIG_EXIT)

    def setup_instance(self, **kwargs: Any) -> None:
        # Workers find each other in the store. Mingle would cost a second at the start, and gossip a message per event.
        kwargs.update(without_mingle=True, without_gossip=True)
        super().setup_instance(**kwargs)
        signals.worker_shutting_down.connect(self._on_signal, weak=False)

    def _on_signal(self, **_: Any) -> None:
        if self.pool is None:
            return
        is_second = self.pool.draining
        # A store that is silent costs each part of the end one read time-out.
        signal.signal(signal.SIGALRM, _leave)
        signal.setitimer(signal.ITIMER_REAL, _LATE_S + (0.0 if is_second else self.app.settings.worker.grace_s))
        if is_second:
            # Do not wait for running jobs.
            self.pool.hurry()
        else:
            self.pool.close_soon()

    def setup_logging(self, colorize: bool | None = None) -> bool:
        logs.configure(self.loglevel or logging.INFO)
        return True

    def emit_banner(self) -> None:
        """No banner: the log has the same facts as data."""
