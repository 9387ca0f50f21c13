"""`python -m penstock.workers.main`: the worker process. The same as `celery -A penstock.broker.celery_app worker`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from penstock.errors import ConfigError

_PR_SET_PDEATHSIG = 1
_USAGE_EXIT = 2


def _die_with_parent() -> None:
    """`penstock up` asks for this: a worker that outlives it would keep a model in memory that nobody knows of."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> int:
    if os.environ.get("PENSTOCK_DIE_WITH_PARENT") == "1":
        _die_with_parent()
    try:
        # Imported here: the settings are read, and found wanting, as the app is built.
        from penstock.broker.celery_app import app
    except ConfigError as error:
        sys.stderr.write("\n".join(filter(None, [error.message, error.hint, ""])))
        return _USAGE_EXIT
    app.worker_main(["worker", "--loglevel=INFO", *sys.argv[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
