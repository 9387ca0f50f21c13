"""The primary is lost with its disk, and its replica takes over: F21 with `store.durability` replicated and local."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.flow import Flow
from tests.faults.ledger import Entry
from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.faults.stack import Plan, Stack, whole_stack
from tests.faults.steps import conclude, healed_now

_AT_ONCE = {"repl-diskless-sync-delay": "0"}
RUN_S = 0.02
# What a primary still acknowledges after its replica hears no more of it is what asynchronous replication loses.
_APART_S = 0.3


@dataclass(frozen=True, slots=True)
class Standby:
    """A replica, and the link over which it hears of its primary."""

    server: Server
    link: Proxy

    def stop(self) -> None:
        self.link.stop()
        self.server.stop()


@fault("F21-replicated", "the primary is lost with its disk, its replica takes over: nothing is undone")
def replicated(setting: Setting) -> Verdict:
    """Inside the promise: whatever was accepted is on the replica's disk."""
    return _failovers(setting, "F21-replicated", "replicated")


@fault("F21-local", "the same without waiting for the replica")
def local(setting: Setting) -> Verdict:
    """Outside the promise: what is undone is counted, and nothing else may go wrong."""
    return _failovers(setting, "F21-local", "local")


def _failovers(setting: Setting, name: str, durability: str) -> Verdict:
    variables = {"PENSTOCK_STORE__DURABILITY": durability}
    rounds = setting.count(3, 30)
    with whole_stack(Plan(model={"max_batch_size": 4}, server=_AT_ONCE, variables=variables), setting.folder) as stack:
        if durability == "local":
            stack.driver.also_expected = {404}
        standby = _standby_of(stack.server, setting.folder / "replica-0")
        try:
            flow = Flow(stack.driver, make=lambda: order("sleep", seconds=RUN_S))
            with stack.driver.watching(), flow.running():
                for number in range(rounds):
                    time.sleep(1.0)
                    standby = _lose_the_primary(stack, standby, setting.folder / f"replica-{number + 1}")
                hit = healed_now(stack)
                time.sleep(1.0)
            undone = _undone(stack) if durability == "local" else []
            stack.driver.ledger.forget(undone)
            ends = _undone_ends(stack)
            notes = f"{rounds} primaries lost with their disks; {len(undone)} acknowledgements and {ends} ends undone"
            return conclude(stack, name, hit, notes=notes)
        finally:
            standby.stop()


def _undone(stack: Stack) -> list[Entry]:
    return [entry for entry in stack.driver.ledger.accepted() if stack.face.look(entry.job)[0].status == 404]


def _undone_ends(stack: Stack) -> int:
    """How many jobs ended in the last moment of a primary, and ran again: outside the promise, but for their last end."""
    stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=60.0)
    stack.driver.look_again()
    again = [entry for entry in stack.driver.ledger.accepted() if entry.retracted()]
    for entry in again:
        del entry.views[:-1]
    return len(again)


def _standby_of(primary: Server, folder: Path) -> Standby:
    """A replica that confirms writes, which it does once it has written what it got at first into a log of its own."""
    link = Proxy(primary.port)
    link.start()
    standby = Standby(Server(folder, extra={**_AT_ONCE, "replicaof": f"127.0.0.1 {link.port}"}), link)
    standby.server.start()
    with primary.client() as client:
        eventually(lambda: client.set("here", "1") and client.execute_command("WAITAOF", 1, 1, 100) == [1, 1], timeout_s=20.0)
    return standby


def _lose_the_primary(stack: Stack, standby: Standby, folder: Path) -> Standby:
    """Part the two, lose the primary, promote the replica, have all clients find it, and give it a replica of its own."""
    standby.link.blackhole()
    time.sleep(_APART_S)
    stack.server.kill()
    shutil.rmtree(stack.server.folder)
    with standby.server.client() as client:
        client.replicaof("NO", "ONE")
    standby.link.stop()
    stack.server = standby.server
    for link in stack.links:
        link.target = standby.server.port
        link.reset()
    return _standby_of(standby.server, folder)
