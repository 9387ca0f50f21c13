"""`python -m penstock.workers`: the worker process. The same as `celery -A penstock.broker.celery_app worker`."""

from __future__ import annotations

import sys

from penstock.errors import ConfigError
from penstock.process_lifetime import die_with_parent

# As the command line's table of exit codes has it for settings that cannot be used.
CONFIG_EXIT = 4


def main() -> int:
    die_with_parent()
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
