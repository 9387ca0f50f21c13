"""kill -9 of child, worker, gateway and store while many streams are read, and freezes of child and worker: F42."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.processes import Group
from tests.faults.scenarios.store_loss import still_there
from tests.faults.stack import Plan, Stack, whole_stack
from tests.faults.steps import conclude
from tests.faults.streams.audience import Audience

BATCH = 8
# So many streams are in the middle, or more, when something is struck: of the child or worker that is struck, or of all.
LEAST_OF_ONE, LEAST_OF_ALL = 3, 8
PACE_S = 0.01
# The blow falls up to this long after enough streams are in the middle.
_LATER_S = 0.15
TELLER = {
    "source": f"{Path(__file__).resolve().parents[1] / 'echo.py'}:Teller",
    "max_batch_size": BATCH,
    "warm_up": False,
    # No job may be given up here for being near what is killed on purpose.
    "max_crashes": 1_000,
    "max_attempts": 1_000,
}


class Scene:
    """Readers before a stack, and blows in the middle of what they read."""

    def __init__(self, stack: Stack, setting: Setting) -> None:
        self.stack = stack
        self.kills = setting.count(3, 100)
        self._random = setting.random
        self.audience = Audience(stack, readers=setting.count(12, 24), pace_s=PACE_S, random=setting.random)
        self.hit = 0
        # A process that was killed stays in the list of children until its parent has taken notice.
        self.killed: set[int] = set()

    def strike(self, blow: Callable[[], object]) -> None:
        """Strike once enough of all streams are in the middle."""
        self._await(lambda: len(self.audience.in_midstream()) >= LEAST_OF_ALL)
        self.hit += len(self.audience.in_midstream())
        blow()

    def strike_one(self, place: int, alive: Callable[[], Sequence[int]], blow: Callable[[int], object]) -> None:
        """Strike the one process, of those alive, that tells most streams. Its id is at this place of its runs' names."""
        found: list[int] = []

        def find() -> bool:
            telling = [pid for pid, count in self._telling(place).most_common() if count >= LEAST_OF_ONE]
            found[:] = [pid for pid in telling if pid not in self.killed and pid in alive()]
            return bool(found)

        self._await(find)
        self.hit += self._telling(place)[found[0]]
        blow(found[0])

    def _await(self, enough: Callable[[], bool]) -> None:
        eventually(enough, timeout_s=60.0)
        time.sleep(self._random.uniform(0.0, _LATER_S))

    def _telling(self, place: int) -> Counter[int]:
        return Counter(int(heard.run.split(".")[place]) for heard in self.audience.in_midstream() if heard.run)

    def children(self) -> list[int]:
        return [pid for worker in self.stack.workers for pid in worker.children()]

    def supervisors(self) -> list[int]:
        return [worker.pid for worker in self.stack.workers if worker.running]

    def worker(self, pid: int) -> Group:
        return next(worker for worker in self.stack.workers if worker.pid == pid)

    def conclude(self, name: str, *, most_extra: int, struck: str = "kills", complaints: Sequence[str] = ()) -> Verdict:
        self.audience.read_again()
        notes = f"{self.kills} {struck} hit {self.hit} streams in the middle; {self.audience.notes()}"
        found = [*complaints, *still_there(self.stack), *self.audience.complaints()]
        return conclude(self.stack, name, within_s=120.0, most_extra=most_extra, notes=notes, complaints=found)


@contextmanager
def scene(setting: Setting, plan: Plan | None = None) -> Iterator[Scene]:
    with whole_stack(plan or Plan(workers=2, model=TELLER), setting.folder) as stack:
        yield Scene(stack, setting)


@fault("F42", "kill -9 of the child in the middle of its streams")
def child_killed(setting: Setting) -> Verdict:
    with scene(setting) as played:

        def kill(pid: int) -> None:
            os.kill(pid, signal.SIGKILL)
            played.killed.add(pid)

        with played.audience.reading():
            for _ in range(played.kills):
                played.strike_one(1, played.children, kill)
        return played.conclude("F42", most_extra=played.kills * BATCH)


@fault("F42-worker", "kill -9 of a worker in the middle of its streams")
def worker_killed(setting: Setting) -> Verdict:
    with scene(setting) as played:

        def kill(pid: int) -> None:
            worker = played.worker(pid)
            worker.kill()
            worker.start()

        with played.audience.reading():
            for _ in range(played.kills):
                played.strike_one(0, played.supervisors, kill)
        return played.conclude("F42-worker", most_extra=played.kills * BATCH)


@fault("F42-gateway", "kill -9 of the gateway in the middle of the streams that it sends")
def gateway_killed(setting: Setting) -> Verdict:
    with scene(setting) as played:

        def kill() -> None:
            played.stack.gateway.kill()
            played.stack.gateway.start()
            played.stack.await_gateway()

        with played.audience.reading():
            for _ in range(played.kills):
                played.strike(kill)
        return played.conclude("F42-gateway", most_extra=0)


@fault("F42-store", "kill -9 of the store in the middle of all streams")
def store_killed(setting: Setting) -> Verdict:
    with scene(setting) as played:

        def kill() -> None:
            played.stack.server.kill()
            played.stack.server.start()

        with played.audience.reading():
            for _ in range(played.kills):
                played.strike(kill)
        # A worker that is late to come back to the store may be taken for gone, which costs a run.
        return played.conclude("F42-store", most_extra=played.kills * BATCH)


@fault(
    "F42-freeze",
    "SIGSTOP of a child, then of a worker, in mid-stream, for longer than the lease; then SIGCONT",
)
def frozen(setting: Setting) -> Verdict:
    lease_s = float(setting.count(3, 5))
    with scene(setting, Plan(workers=2, lease_s=lease_s, beat_s=lease_s / 4, model=TELLER)) as played:
        played.kills = setting.count(1, 5)

        def freeze(pid: int) -> None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(2 * lease_s)
            os.kill(pid, signal.SIGCONT)

        def freeze_worker(pid: int) -> None:
            worker = played.worker(pid)
            worker.signal_all(signal.SIGSTOP)
            time.sleep(2 * lease_s)
            worker.signal_all(signal.SIGCONT)

        with played.audience.reading():
            for _ in range(played.kills):
                played.strike_one(1, played.children, freeze)
            # Its supervisor kept the lease, so the child goes on where it was.
            again = played.stack.executions.extra(set(played.stack.driver.ledger.entries))
            for _ in range(played.kills):
                played.strike_one(0, played.supervisors, freeze_worker)
        complaints = [f"{again} runs were repeated for frozen children"] if again else []
        # As a worker wakes up, its child may begin the batch behind the one it ran before its slot takes that batch back.
        most = played.kills * 2 * BATCH
        return played.conclude("F42-freeze", most_extra=most, struck="freezes of each", complaints=complaints)
