"""What goes on beside the load of a soak: runs over a file, jobs that are cancelled, kills of worker, child and gateway."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.errors import StoreUnavailable
from tests.faults.processes import Group
from tests.faults.stack import MODEL, Stack

# Results, records of runs and everything else of a job are kept so long, so that a soak soon collects as much as it makes.
KEEP_S = 10
# A tombstone says for a minute more that a job was here.
KEPT_S = KEEP_S + 60.0
_ROWS = 2_000
_CANCEL_EVERY_S = 0.2
_JSON = {"content-type": "application/json"}


class Runs:
    """One run after another over the same file. Processes start from the main thread, so that thread calls `follow`."""

    def __init__(self, stack: Stack, *, pause_s: float) -> None:
        self._stack = stack
        self._pause_s = pause_s
        self._input, self._output = stack.folder / "soak.jsonl", stack.folder / "soak-out.jsonl"
        self._input.write_text("".join(f'{{"x": {row}}}\n' for row in range(_ROWS)))
        self._run: Group | None = None
        self._next_at = 0.0
        self.ended: Counter[int] = Counter()

    def follow(self) -> None:
        """Begin the next run when its time has come; note how the last one ended."""
        if self._run is not None and not self._run.running:
            self.ended[self._run.wait()] += 1
            self._run, self._next_at = None, time.monotonic() + self._pause_s
            self._forget_old()
        if self._run is None and time.monotonic() >= self._next_at:
            for left in self._stack.folder.glob("soak-out*"):
                left.unlink()
            self._run = self._stack.command("run", MODEL, str(self._input), "-o", str(self._output), "--json")
            self._run.start()

    def stop(self) -> None:
        if self._run is not None:
            self._run.stop()

    def _forget_old(self) -> None:
        """Records of runs are kept for a month; here a listing drops those that ended a moment ago."""
        with contextlib.closing(RedisStore(self._stack.server.url)) as store, contextlib.suppress(StoreUnavailable):
            RunStore(store).page(limit=1, keep_s=KEEP_S)


class Kills:
    """Kills in turn; what dies is started again. The last worker is spared: its memory is measured over the whole time.

    After `most` kills nothing is killed any more, so that what was started last is measured for long.
    """

    def __init__(self, stack: Stack, *, every_s: float, most: int) -> None:
        self._stack = stack
        self._every_s = every_s
        self._most = most
        self._next_at = time.monotonic() + every_s
        self._turns = [self._kill_child, self._kill_worker, self._kill_gateway]
        self.done: Counter[str] = Counter()

    def follow(self) -> None:
        if self.done.total() < self._most and time.monotonic() >= self._next_at:
            self._turns[self.done.total() % len(self._turns)]()
            self._next_at = time.monotonic() + self._every_s

    def _kill_child(self) -> None:
        for pid in self._stack.workers[0].children()[:1]:
            os.kill(pid, signal.SIGKILL)
        self.done["child"] += 1

    def _kill_worker(self) -> None:
        self._kill("worker", self._stack.workers[0])

    def _kill_gateway(self) -> None:
        self._kill("gateway", self._stack.gateway)

    def _kill(self, name: str, group: Group) -> None:
        group.kill()
        group.start()
        self.done[name] += 1


class Stalls:
    """The store stands still for a moment, thrice soon after the start of each gateway.

    All callers wait then, and the gateway's allocator keeps the memory that they took. Without this, the first moment in which
    the machine itself stands still is a step in the gateway's memory, anywhere in the run.
    """

    _AFTER_S = (6.0, 9.0, 12.0)
    _FOR_S = 0.5

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._gateway = 0
        self._due: list[float] = []

    def follow(self) -> None:
        now, pid = time.monotonic(), self._stack.gateway.pid
        if pid != self._gateway:
            self._gateway, self._due = pid, [now + after_s for after_s in self._AFTER_S]
        if self._due and now >= self._due[0]:
            del self._due[0]
            self._stand_still()

    def _stand_still(self) -> None:
        self._stack.server.signal(signal.SIGSTOP)
        try:
            time.sleep(self._FOR_S)
        finally:
            self._stack.server.signal(signal.SIGCONT)


class Cancels:
    """Jobs that are submitted and cancelled at once, on a thread. They carry no idempotency key, whose record outlives them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stop = threading.Event()
        self.answers: Counter[int] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._cancel_for_ever)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _cancel_for_ever(self) -> None:
        while not self._stop.wait(_CANCEL_EVERY_S):
            made = self._stack.face.ask("POST", f"/v1/models/{MODEL}/jobs", b'{"x": 4}', _JSON)
            if made.status == 202:
                answer = self._stack.face.ask("DELETE", f"/v1/jobs/{made.json()['id']}")
                self.answers[answer.status] += 1


class Load:
    """The process that sends the load, and what it has told last."""

    def __init__(self, stack: Stack, folder: Path, *, per_s: float) -> None:
        arguments = [str(stack.gateway_port), f"/predictions/{MODEL}", str(per_s)]
        self._log = folder / "load.log"
        self._group = Group(["tests.faults.soak.load", *arguments], os.environ, self._log)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._group.start()
        try:
            yield
        finally:
            self._group.kill()

    def answers(self) -> dict[str, int]:
        """Return how many requests were answered how."""
        told = [line for line in self._log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        if not told:
            raise RuntimeError(f"the load told nothing: {self._log.read_text()[-2_000:]}")
        found: dict[str, int] = json.loads(told[-1])
        return found
