"""The entry point of the `penstock` command: it says what to install if packages that the verb needs are missing.

pip installs the command with the client, which is `penstock-inference` without extras. Only this module and its imports work
then; all else is in `penstock.cli.main`.
"""

from __future__ import annotations

import os
import sys

from penstock.cli import exits
from penstock.distribution import require_extra
from penstock.errors import ConfigError

# D124: these start or prepare a server, use a store without a gateway, or run a model here. The other verbs ask a gateway.
SERVER_VERBS = frozenset(
    [
        "bench",
        "debug",
        "doctor",
        "flower",
        "gateway",
        "run",
        "runner",
        "store",
        "tune",
        "up",
        "worker",
    ]
)
# Set while the shell completes a line: printed text would appear in the line that is being typed.
_COMPLETING = "_PENSTOCK_COMPLETE"


def main() -> None:
    """Run the command. The process exits with one of the codes in `exits`."""
    arguments = sys.argv[1:]
    verb = next((word for word in arguments[:1] if not word.startswith("-")), "")
    try:
        # Runs at a gateway need no server here.
        is_at_gateway = verb == "run" and any(word.partition("=")[0] == "--url" for word in arguments)
        require_extra("serve" if verb in SERVER_VERBS and not is_at_gateway else "cli", who=f"penstock {verb}".rstrip())
    except ConfigError as error:
        sys.exit(_refused(error, as_json="--json" in arguments))
    from penstock.cli.main import main as run

    run()


def _refused(error: ConfigError, *, as_json: bool) -> int:
    return exits.CONFIG if _COMPLETING in os.environ else exits.report(error, as_json=as_json)


if __name__ == "__main__":
    # `python -m penstock`: src/penstock/__main__.py is a link to this file.
    main()
