"""`python -m penstock.workers`: the worker process, the same as `celery -A penstock.broker.celery_app worker`."""

from __future__ import annotations

import os
import sys
from typing import Any

from penstock.errors import ConfigError
from penstock.process_lifetime import die_with_parent, leave_at_once, loading

# The exit code of all commands for settings that cannot be used (see `penstock.cli.exits`).
CONFIG_EXIT = 4
# The exit code for a process that cannot run here.
START_EXIT = 7
_LINUX_CALLS = ("eventfd", "memfd_create", "pidfd_open")


def platform_fault() -> str:
    """Why no worker can run on this system, in one sentence; empty on Linux."""
    missing = [f"os.{name}" for name in _LINUX_CALLS if not hasattr(os, name)]
    return f"a worker needs Linux: this system has no {', '.join(missing)}" if missing else ""


def main() -> int:
    if fault := platform_fault():
        sys.stderr.write(f"{fault}\n")
        return START_EXIT
    die_with_parent()
    leave_at_once()
    try:
        # Imported here, because building the app reads the settings and may refuse them.
        with loading():
            from penstock.broker.celery_app import app
            from penstock.broker.store.library import library
            from penstock.workers.bootstep import consumer, pool, program  # noqa: F401 - Celery names them, and finds them loaded
        # Extensions with missing parts are refused here; during Celery's start they would cause a traceback.
        library()
    except ConfigError as error:
        sys.stderr.write("\n".join(filter(None, [error.message, error.hint])) + "\n")
        return CONFIG_EXIT
    return _run_with_options(app, sys.argv[1:]) if sys.argv[1:] else _run(app)


def _run(app: Any) -> int:
    """What `celery worker --loglevel=INFO` does. Celery's command line would load all its commands and plugins."""
    worker = app.Worker(loglevel="INFO", optimization="default")
    worker.start()
    return int(worker.exitcode or 0)


def _run_with_options(app: Any, options: list[str]) -> int:
    from celery.bin.celery import celery

    # What `app.worker_main` does, which would discard the exit code.
    celery.params[0].default = app
    return int(celery.main(args=["worker", "--loglevel=INFO", *options], standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main())
