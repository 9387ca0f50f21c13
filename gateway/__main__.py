"""`python -m penstock.gateway`: the gateway process. It reads the settings and serves with one process or several."""

from __future__ import annotations

import logging
import sys

from penstock.process_lifetime import die_with_parent, leave_at_once, loading


def main(arguments: list[str]) -> int:
    die_with_parent()
    leave_at_once()
    with loading():
        from penstock import logs
        from penstock.errors import ConfigError
        from penstock.gateway import serving
        from penstock.settings.tables import Settings
    # A log line per malformed request would let any client fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logs.configure(libraries=logging.WARNING)
    try:
        settings = Settings.load()
        return serving.serve_one(settings, shared=True) if serving.SHARED in arguments else serving.serve(settings)
    except ConfigError as error:
        serving.log.error("gateway_cannot_start", reason=error.message, hint=error.hint)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
