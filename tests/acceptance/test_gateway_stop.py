from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from penstock.loadtest.stack import free_port

# The first moment is before the parent has read its settings, the last one after its children listen.
MOMENTS_S = [0.2, 0.5, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0]


def start(redis_url: str, folder: Path) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {
        "PENSTOCK_REDIS_URL": redis_url,
        "PENSTOCK_STORE__STATE_DIR": str(folder),
        "PENSTOCK_GATEWAY__PORT": str(free_port()),
        "PENSTOCK_GATEWAY__PROCESSES": "2",
        "PENSTOCK_MODELS": json.dumps({}),
    }
    return subprocess.Popen([sys.executable, "-m", "penstock.gateway"], env=env, stdout=subprocess.DEVNULL)


def test_a_stop_that_comes_while_processes_are_starting_is_not_lost(redis_url: str, tmp_path: Path) -> None:
    """No SIGTERM may be lost between two installations of signal handlers.

    A child once swallowed a SIGTERM that arrived after penstock's handlers and before the server's were installed, and the
    parent waited for that child for ever.
    """
    began_at = time.monotonic()
    gateways = [start(redis_url, tmp_path / str(n)) for n, _ in enumerate(MOMENTS_S)]
    for gateway, moment_s in zip(gateways, MOMENTS_S, strict=True):
        time.sleep(max(0.0, began_at + moment_s - time.monotonic()))
        gateway.send_signal(signal.SIGTERM)
    # A process that has not installed its handlers yet is ended by the signal itself.
    assert {gateway.wait(timeout=60.0) for gateway in gateways} <= {0, -signal.SIGTERM}
