"""The primary is lost with its disk, and its replica takes over: F21 with `store.durability` replicated and local."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.workers.ipc.frames import INPUT_MISSING_CODE
from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.flow import Flow
from tests.faults.ledger import Entry
from tests.faults.memory import USUAL_GROWTH_MIB
from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.faults.stack import Plan, Stack, whole_stack
from tests.faults.steps import conclude, healed_now
from tests.s3_server import BUCKET, s3_server

_AT_ONCE = {"repl-diskless-sync-delay": "0"}
# Inputs that are blobs: a file of its own each, or an object.
_LARGE_BYTES = 3_000_000


@dataclass(frozen=True, slots=True)
class Trial:
    """`apart_s`: what a primary still acknowledges after its replica hears no more of it, asynchronous replication loses. The
    jobs of a trial take `run_s` each and have inputs of about `input_bytes`; `per_second` are submitted, and `waiting` more
    before the two are parted.
    """

    name: str
    durability: str = "replicated"
    rounds: int = 3
    apart_s: float = 0.3
    run_s: float = 0.02
    per_second: float = 50.0
    input_bytes: int = 0
    waiting: int = 0
    growth_mib: float = USUAL_GROWTH_MIB
    variables: Mapping[str, str] = field(default_factory=dict)

    def order(self) -> dict[str, Any]:
        return order("sleep", seconds=self.run_s, weight="x" * self.input_bytes)


def _large(setting: Setting, name: str, **variables: str) -> Trial:
    """A gateway holds some of these inputs while they arrive."""
    return Trial(
        name,
        rounds=setting.count(2, 6),
        apart_s=0.6,
        run_s=0.05,
        per_second=5.0,
        input_bytes=_LARGE_BYTES,
        waiting=12,
        growth_mib=200.0,
        variables=variables,
    )


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
    return _failovers(setting, Trial("F21-replicated", rounds=setting.count(3, 30)))


@fault("F21-local", "the same without waiting for the replica")
def local(setting: Setting) -> Verdict:
    """Outside the promise: what is undone is counted, and nothing else may go wrong."""
    return _failovers(setting, Trial("F21-local", "local", rounds=setting.count(3, 30)))


@fault("F21-files", "as F21-replicated, with inputs of 3 MB that are files")
def files(setting: Setting) -> Verdict:
    """A job whose end is undone runs again, so its input must still be there."""
    return _failovers(setting, _large(setting, "F21-files"))


@fault("F21-objects", "as F21-replicated, with inputs of 3 MB that are objects")
def objects(setting: Setting) -> Verdict:
    """As F21-files, on an object store."""
    setting.folder.mkdir(parents=True, exist_ok=True)
    with s3_server(setting.folder) as environment:
        return _failovers(
            setting, _large(setting, "F21-objects", **environment, PENSTOCK_STORE__BLOB_URL=f"s3://{BUCKET}/failover")
        )


def _failovers(setting: Setting, trial: Trial) -> Verdict:
    variables = {"PENSTOCK_STORE__DURABILITY": trial.durability, **trial.variables}
    plan = Plan(model={"max_batch_size": 4}, server=_AT_ONCE, variables=variables, growth_mib=trial.growth_mib)
    with whole_stack(plan, setting.folder) as stack:
        if trial.durability == "local":
            stack.driver.also_expected = {404}
        standby = _standby_of(stack.server, setting.folder / "replica-0")
        try:
            flow = Flow(stack.driver, per_second=trial.per_second, make=trial.order)
            with stack.driver.watching(), flow.running():
                for number in range(trial.rounds):
                    time.sleep(1.0)
                    stack.driver.submit_all([trial.order() for _ in range(trial.waiting)])
                    standby = _lose_the_primary(stack, standby, setting.folder / f"replica-{number + 1}", trial.apart_s)
                hit = healed_now(stack)
                time.sleep(1.0)
            undone = _undone(stack) if trial.durability == "local" else []
            stack.driver.ledger.forget(undone)
            ends, missing = _undone_ends(stack)
            notes = f"{trial.rounds} primaries lost with their disks; {len(undone)} acknowledgements and {ends} ends undone"
            notes += f", {missing} without input"
            return conclude(stack, trial.name, hit, notes=notes)
        finally:
            standby.stop()


def _undone(stack: Stack) -> list[Entry]:
    return [entry for entry in stack.driver.ledger.accepted() if stack.face.look(entry.job)[0].status == 404]


def _undone_ends(stack: Stack) -> tuple[int, int]:
    """How many jobs ended in the last moment of a primary, and ran again: outside the promise, but for their last end. And how
    many jobs had lost their input when they ran again.
    """
    stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=60.0)
    stack.driver.look_again()
    again = [entry for entry in stack.driver.ledger.accepted() if entry.retracted()]
    for entry in again:
        del entry.views[:-1]
    last = [entry.last for entry in stack.driver.ledger.accepted()]
    return len(again), sum(view is not None and view.error == INPUT_MISSING_CODE for view in last)


def _standby_of(primary: Server, folder: Path) -> Standby:
    """A replica that confirms writes, which it does once it has written what it got at first into a log of its own."""
    link = Proxy(primary.port)
    link.start()
    standby = Standby(Server(folder, extra={**_AT_ONCE, "replicaof": f"127.0.0.1 {link.port}"}), link)
    standby.server.start()
    with primary.client() as client:
        eventually(lambda: client.set("here", "1") and client.execute_command("WAITAOF", 1, 1, 100) == [1, 1], timeout_s=20.0)
    return standby


def _lose_the_primary(stack: Stack, standby: Standby, folder: Path, apart_s: float) -> Standby:
    """Part the two, lose the primary, promote the replica, have all clients find it, and give it a replica of its own."""
    standby.link.blackhole()
    time.sleep(apart_s)
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
