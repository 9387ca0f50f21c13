"""What could grow: the store's memory and keys, each process's memory and descriptors, and the files of the state folder."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict, deque
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
    "memory used by the store per kept job": ("bytes", 10.0),
    "resident memory beyond the peak of use": ("MiB", 1.0),
    "keys in the store per kept job": ("keys", 0.02),
    "files in the state folder": ("files", 5.0),
    "resident memory": ("MiB", 1.0),
    "anonymous memory": ("MiB", 1.0),
    "open descriptors": ("descriptors", 3.0),
}


class Sampler:
    """Samples on a thread. `series` is by quantity and role, then by process; moments are seconds since the start."""

    def __init__(self, stack: Stack, *, every_s: float, kept_s: float) -> None:
        """`kept_s`: how long the store keeps anything of a job after its end."""
        self._stack = stack
        self._every_s = every_s
        self._kept_s = kept_s
        # Moments, and how many jobs had been accepted by each, within `kept_s`.
        self._accepted: deque[tuple[float, int]] = deque()
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
            if kept := self._kept_jobs():
                self._note("memory used by the store per kept job", "store", 0, memory["used_memory"] / kept)
                self._note("keys in the store per kept job", "store", 0, int(client.dbsize()) / kept)
            # The allocator keeps what it had at the peak, and use is higher while more answers per second are kept.
            beyond = memory["used_memory_rss"] - memory["used_memory_peak"]
            self._note("resident memory beyond the peak of use", "store", 0, beyond / _MIB)

    def _kept_jobs(self) -> int:
        """How many jobs were accepted in the last `kept_s`; 0 until that much time has passed."""
        now = self.now_s()
        self._accepted.append((now, self._stack.counters().get("accepted", 0)))
        while self._accepted[0][0] < now - self._kept_s:
            self._accepted.popleft()
        is_whole = now >= self._kept_s and len(self._accepted) > 1
        return self._accepted[-1][1] - self._accepted[0][1] if is_whole else 0

    def _sample_process(self, role: str, process: psutil.Process) -> None:
        self._note("open descriptors", role, process.pid, process.num_fds())
        if role != "store":
            self._note("resident memory", role, process.pid, process.memory_info().rss / _MIB)
            self._note("anonymous memory", role, process.pid, _anonymous_mib(process.pid))

    def _note(self, quantity: str, role: str, process: int, value: float) -> None:
        self.series[quantity, role][process].append((round(self.now_s(), 1), round(value, 3)))


def _anonymous_mib(pid: int) -> float:
    """What the process allocated itself. Its proportional memory would also change when others map the same libraries."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    raise psutil.NoSuchProcess(pid)


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))
