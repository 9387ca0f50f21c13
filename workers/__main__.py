"""`python -m penstock.workers`: the worker process, the same as `celery -A penstock.broker.celery_app worker`."""

from __future__ import annotations

import os
import sys

from penstock.errors import ConfigError
from penstock.process_lifetime import die_with_parent

# The exit code of all commands for settings that cannot be used (see `penstock.cli.exits`).
CONFIG_EXIT = 4
# And for a process that cannot run here.
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
    try:
        # Imported here, because building the app reads the settings and may refuse them.
        from penstock.broker.celery_app import app
    except ConfigError as error:
        sys.stderr.write("\n".join(filter(None, [error.message, error.hint])) + "\n")
        return CONFIG_EXIT
    from celery.bin.celery import celery

    # What `app.worker_main` does, which would discard the exit code.
    celery.params[0].default = app
    return int(celery.main(args=["worker", "--loglevel=INFO", *sys.argv[1:]], standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main())
