"""What could grow: the store's memory and keys, each process's memory and descriptors, and the files of the state folder."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import redis

from tests.faults.soak.slopes import Point
from tests.faults.stack import Stack

_MIB = 1 << 20
# By quantity: its unit, and the smallest change that means something.
QUANTITIES = {
    "memory used by the store": ("MiB", 0.25),
    "keys in the store": ("keys", 20.0),
    "files in the state folder": ("files", 5.0),
    "resident memory": ("MiB", 1.0),
    "proportional memory": ("MiB", 1.0),
    "open descriptors": ("descriptors", 3.0),
}


class Sampler:
    """Samples on a thread. `series` is by quantity and role, then by process; moments are seconds since the start."""

    def __init__(self, stack: Stack, *, every_s: float) -> None:
        self._stack = stack
        self._every_s = every_s
        self._stop = threading.Event()
        self._began_at = time.monotonic()
        self._failed: list[Exception] = []
        self.series: dict[tuple[str, str], dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._sample_for_ever)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def now_s(self) -> float:
        return time.monotonic() - self._began_at

    def _sample_for_ever(self) -> None:
        while not self._stop.wait(self._every_s):
            with contextlib.suppress(redis.RedisError):
                self._sample_store()
            self._note("files in the state folder", "store", 0, _files(self._stack.folder / "state"))
            with contextlib.suppress(psutil.NoSuchProcess):
                for role, process in self._stack.processes():
                    self._sample_process(role, process)

    def _sample_store(self) -> None:
        with self._stack.server.client() as client:
            memory: Any = client.info("memory")
            self._note("memory used by the store", "store", 0, memory["used_memory"] / _MIB)
            self._note("keys in the store", "store", 0, int(client.dbsize()))

    def _sample_process(self, role: str, process: psutil.Process) -> None:
        full = process.memory_full_info()
        self._note("resident memory", role, process.pid, full.rss / _MIB)
        self._note("proportional memory", role, process.pid, full.pss / _MIB)
        self._note("open descriptors", role, process.pid, process.num_fds())

    def _note(self, quantity: str, role: str, process: int, value: float) -> None:
        self.series[quantity, role][process].append((round(self.now_s(), 1), round(value, 3)))


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))
