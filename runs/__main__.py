"""`python -m penstock.runs`: the runner process; with `PENSTOCK_RUNNER_RUN`, one more driver of that run only."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.process_lifetime import die_with_parent, leave_at_once, loading

if TYPE_CHECKING:
    from penstock.runs.execution import RunServices

# The code for unusable settings in the command line's table of exit codes.
CONFIG_EXIT = 4
RUN_VARIABLE = "PENSTOCK_RUNNER_RUN"
_TURN_S = 0.1


def main() -> int:
    die_with_parent()
    leave_at_once()
    with loading():
        from penstock import logs
        from penstock.broker.protocol import membership
        from penstock.broker.store.library import library
        from penstock.errors import ConfigError
        from penstock.runs.execution import RunServices
        from penstock.runs.runner import Runner
        from penstock.settings.tables import Settings
    logs.configure()
    try:
        settings = Settings.load()
        if not settings.store.url:
            raise ConfigError("no Redis is configured, and a runner starts none", hint="set PENSTOCK_REDIS_URL")
        # Extensions that are declared but not installed are refused with the settings.
        library()
    except ConfigError as error:
        sys.stderr.write("\n".join(filter(None, [error.message, error.hint])) + "\n")
        return CONFIG_EXIT
    membership.enter("runner")
    services = RunServices(settings.store.url, settings.blob_location, settings.store.state_dir)
    if run_id := os.environ.get(RUN_VARIABLE):
        _help(services, run_id, stopped=_stop_waiter())
    else:
        Runner(services, stopped=_stop_waiter()).run()
    return 0


def _help(services: RunServices, run_id: str, *, stopped: Callable[[float], bool]) -> None:
    """Drive parts of one run until a stop signal, then leave the current part at its next commit."""
    from penstock.runs.runner import RunHelper

    helper = RunHelper(services, run_id, forever=True)
    thread = threading.Thread(target=helper.help, name="run-helper", daemon=True)
    thread.start()
    while thread.is_alive() and not stopped(_TURN_S):
        pass
    helper.interrupt()
    thread.join()


def _stop_waiter() -> Callable[[float], bool]:
    """Waits at most the given seconds for a stop signal; True once one has come."""
    received = threading.Event()

    def on_signal(number: int, frame: Any) -> None:
        received.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    sign = os.environ.get("PENSTOCK_RUNNER_SIGN")

    def wait(seconds: float) -> bool:
        if sign:
            Path(sign).touch()  # A health check reads the file's age.
        return received.wait(seconds)

    return wait


if __name__ == "__main__":
    sys.exit(main())
