"""A submit has handed work to a slot that waits, and the slot dies, freezes or is told to stop before it starts: F41."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.ledger import Entry
from tests.faults.processes import Group
from tests.faults.stack import MODEL, Plan, Stack, bare_stack
from tests.faults.steps import conclude, echoes, healed_now

LEASE_S = 3.0
# Nothing waits for such a lease: what comes back, comes back because the worker is known to be gone.
LONG_LEASE_S = 600.0
# A worker that holds no job ends long before its grace is over.
GRACE_S = 30.0
# One job per slot: a slot whose batches hold more leaves no offer.
SINGLE = {"max_batch_size": 1, "max_attempts": 1_000, "max_crashes": 3}


class Struck:
    """A worker with many slots that is struck again and again, beside one with a single slot that stays."""

    def __init__(self, stack: Stack, slots: int) -> None:
        self.stack = stack
        self.slots = slots
        self.worker, self._other = stack.workers
        self.handed_over = 0
        self._others: set[str] = set()

    def begin(self) -> None:
        """Start everything, the worker that stays first: so it is known which offers are whose."""
        self.stack.gateway.start()
        self.stack.await_gateway()
        self._start(self._other, 1)
        eventually(self._offers, timeout_s=60.0)
        self._others = {_slot_of(name) for name in self._offers()}
        self.start()

    def start(self) -> None:
        self._start(self.worker, self.slots)

    def _start(self, worker: Group, slots: int) -> None:
        table = {**self.stack.table(), "slots": slots}
        worker.start(PENSTOCK_MODELS=json.dumps({MODEL: table}))

    def _offers(self) -> set[str]:
        """The incarnations that wait for work."""
        with self.stack.server.client() as client:
            return {name.decode() for name in client.hkeys(f"ps:{{{MODEL}}}:offers:1")}

    def offers(self) -> set[str]:
        """Those of the worker that is struck."""
        return {name for name in self._offers() if _slot_of(name) not in self._others}

    def await_offers(self) -> None:
        eventually(lambda: len(self.offers()) == self.slots, timeout_s=90.0)

    def hand_over(self) -> list[Entry]:
        """Submit until each slot of the worker has been handed a job; the other worker gets its share besides."""
        entries: list[Entry] = []
        while waiting := len(self.offers()):
            entries += self.stack.driver.submit_all(echoes(waiting), threads=1)
            self.handed_over += waiting - len(self.offers())
        return entries

    def conclude(self, name: str, complaints: list[str]) -> Verdict:
        hit = healed_now(self.stack)
        notes = f"{self.handed_over} slots struck"
        return conclude(self.stack, name, hit, within_s=120.0, most_extra=0, notes=notes, complaints=complaints)


def _slot_of(incarnation: str) -> str:
    return incarnation.rpartition(".")[0]


@contextmanager
def struck(folder: Path, slots: int, *, lease_s: float = LONG_LEASE_S) -> Iterator[Struck]:
    plan = Plan(workers=2, lease_s=lease_s, beat_s=LEASE_S / 4, grace_s=GRACE_S, model=SINGLE)
    with bare_stack(plan, folder) as stack:
        scene = Struck(stack, slots)
        scene.begin()
        yield scene


@fault("F41", "kill -9 of a worker whose slots were just handed work by the submits")
def killed(setting: Setting) -> Verdict:
    with struck(setting.folder, setting.count(4, 25)) as scene:
        for _ in range(setting.count(2, 40)):
            scene.await_offers()
            # A stopped worker cannot start what it is handed before it is killed.
            scene.worker.signal(signal.SIGSTOP)
            scene.hand_over()
            scene.worker.kill()
            scene.start()
        return scene.conclude("F41", [])


@fault("F41-freeze", "SIGSTOP of a worker whose slots are then handed work, until its leases have lapsed; then SIGCONT")
def frozen(setting: Setting) -> Verdict:
    complaints = []
    with struck(setting.folder, setting.count(4, 25), lease_s=LEASE_S) as scene:
        for number in range(setting.count(2, 40)):
            scene.await_offers()
            scene.worker.signal(signal.SIGSTOP)
            entries = scene.hand_over()
            if not scene.stack.driver.await_ends(entries, within_s=60.0):
                complaints.append(f"round {number}: nobody took the frozen worker's jobs")
            scene.worker.signal(signal.SIGCONT)
        scene.await_offers()
        pid = scene.worker.pid
        begun = {line.nonce for line in scene.stack.executions.of("begin") if line.supervisor == pid}
        zombies = begun & scene.stack.driver.ledger.entries.keys()
        complaints += [f"{len(zombies)} jobs were begun by the worker that had been frozen"] if zombies else []
        return scene.conclude("F41-freeze", complaints)


@fault("F41-drain", "SIGTERM of a worker whose slots wait, while submits hand them work or none comes")
def told_to_stop(setting: Setting) -> Verdict:
    complaints: list[str] = []
    with struck(setting.folder, setting.count(4, 25)) as scene:
        for number in range(setting.count(2, 40)):
            scene.await_offers()
            scene.handed_over += scene.slots
            code = _stop(scene, quietly=number % 2 == 0)
            complaints += [f"round {number}: exit code {code}"] if code else []
            complaints += [f"round {number}: offers were left behind"] if scene.offers() else []
            scene.start()
        lost = scene.stack.counters().get("redelivered:worker_lost", 0)
        complaints += [f"{lost} jobs were taken back from a lost worker instead of given back"] if lost else []
        return scene.conclude("F41-drain", complaints)


def _stop(scene: Struck, *, quietly: bool) -> int:
    """Return the worker's exit code. Submits would use up what a worker leaves behind, so in some rounds there are none."""
    until = time.monotonic() + GRACE_S / 2
    with scene.stack.asker.still() if quietly else nullcontext():
        scene.worker.signal(signal.SIGTERM)
        while scene.worker.running and time.monotonic() < until:
            if not quietly:
                scene.stack.driver.submit_all(echoes(8))
            time.sleep(0.01)
    scene.worker.signal_all(signal.SIGKILL)
    return scene.worker.wait()
