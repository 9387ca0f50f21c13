"""`python -m penstock.runs`: the runner process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from penstock import logs
from penstock.errors import ConfigError
from penstock.process_lifetime import die_with_parent
from penstock.runs.execution import RunServices
from penstock.runs.runner import Runner
from penstock.settings.tables import Settings

# As the command line's table of exit codes has it for settings that cannot be used.
CONFIG_EXIT = 4


def main() -> int:
    die_with_parent()
    logs.configure()
    try:
        settings = Settings.load()
        if not settings.store.url:
            raise ConfigError("no Redis is named, and a runner starts none", hint="set PENSTOCK_REDIS_URL")
    except ConfigError as error:
        sys.stderr.write("\n".join(filter(None, [error.message, error.hint])) + "\n")
        return CONFIG_EXIT
    ended = threading.Event()

    def end(number: int, frame: Any) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    sign = Path(os.environ["PENSTOCK_RUNNER_SIGN"]) if os.environ.get("PENSTOCK_RUNNER_SIGN") else None

    def stopped(seconds: float) -> bool:
        if sign is not None:
            sign.touch()  # for whoever checks that we are alive
        return ended.wait(seconds)

    Runner(RunServices(settings.store.url, settings.blob_place, settings.store.state_dir), stopped=stopped).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
