"""Threads of a worker that read the registry for the first time at the same moment."""

from __future__ import annotations

import subprocess
import sys

# Each thread may be stopped anywhere. A barrier lets all begin at once.
READ = """
import sys, threading
from contextlib import suppress
import msgspec
from penstock.broker.store import registry

sys.setswitchinterval(1e-6)
worker = b'[9e9, {"name": "w", "host": "h", "pid": 1, "started_at": 0.0, "slots": [{"model": "m"}], "x": 1}, 0.0]'
model = b'{"name": "m", "default_version": "1", "versions": {"1": {"load_s": 1.0}}, "x": 1}'
barrier = threading.Barrier(4)

def read():
    barrier.wait()
    for _ in range(200):
        with suppress(msgspec.ValidationError):
            registry._models({b"m": model})
        with suppress(msgspec.ValidationError):
            registry.fresh_workers([worker], 0.0)

threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_several_threads_may_be_the_first_to_read_the_registry() -> None:
    # Regression: msgspec read the types at their first use, and a worker that had just started died of SIGSEGV.
    readers = [subprocess.Popen([sys.executable, "-c", READ]) for _ in range(8)]
    assert [reader.wait(60.0) for reader in readers] == [0] * 8
