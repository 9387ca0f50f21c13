"""`python -m penstock.workers.main`: the worker process. The same as `celery -A penstock.broker.celery_app worker`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from penstock.errors import ConfigError

_PR_SET_PDEATHSIG = 1
# As the command line's table of exit codes has it for settings that cannot be used.
CONFIG_EXIT = 4


def _die_with_parent(told: str) -> None:
    """`penstock up` asks for this: a worker that outlives it would keep a model in memory that nobody knows of."""
    # Its pid, where it is told: a parent that was killed while this process started is not ours to ask for any more.
    parent = int(told) if told != "1" else os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> int:
    if told := os.environ.get("PENSTOCK_DIE_WITH_PARENT"):
        _die_with_parent(told)
    try:
        # Imported here: the settings are read, and found wanting, as the app is built.
        from penstock.broker.celery_app import app
    except ConfigError as error:
        sys.stderr.write("\n".join(filter(None, [error.message, error.hint])) + "\n")
        return CONFIG_EXIT
    from celery.bin.celery import celery

    # What `app.worker_main` does, but for the exit code, which that throws away.
    celery.params[0].default = app
    return int(celery.main(args=["worker", "--loglevel=INFO", *sys.argv[1:]], standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main())
