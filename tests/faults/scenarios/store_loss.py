"""The store is killed, loses power, freezes, comes back empty, fails over: F17 to F21."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import replace
from random import Random

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict, is_lost
from tests.faults.driver import order
from tests.faults.flow import Flow, timed
from tests.faults.ledger import Entry
from tests.faults.server import Server
from tests.faults.stack import Plan, Stack, started, whole_stack
from tests.faults.steps import Hit, conclude, echoes, healed_now

_BUSY = {"max_batch_size": 4}
# A plain fault test's jobs: long enough that some run and some wait when the store goes.
RUN_S = 0.02


def still_there(stack: Stack) -> list[str]:
    groups = {"gateway": stack.gateway, **{f"worker {n}": worker for n, worker in enumerate(stack.workers)}}
    return [f"the {name} exited" for name, group in groups.items() if not group.running]


def refusal(stack: Stack, *, within_s: float) -> list[str]:
    """How a submit is answered while the store is away."""
    json = {"content-type": "application/json"}
    for _ in range(3):
        # The quickest of three: a machine that stands still for a second is not the gateway's doing.
        answer, took_s = timed(lambda: stack.face.ask("POST", "/v1/models/echo/jobs", b"{}", json))
        if took_s <= within_s:
            break
    found = (
        [] if answer.status == 503 and "retry-after" in answer.headers else [f"answered {answer.status} {answer.body[:200]!r}"]
    )
    return found + ([f"refused after {took_s:.1f} s, {within_s:g} s allowed"] if took_s > within_s else [])


def _killed(setting: Setting, name: str, fsync: str) -> Verdict:
    away_s = float(setting.count(2, 5))
    with whole_stack(Plan(fsync=fsync, model=_BUSY), setting.folder) as stack:
        flow = Flow(stack.driver, make=lambda: order("sleep", seconds=RUN_S))
        with stack.driver.watching(), flow.running():
            time.sleep(2.0)
            stack.server.kill()
            complaints = refusal(stack, within_s=2.0)
            time.sleep(away_s)
            stack.server.start()
            hit = healed_now(stack)
            time.sleep(3.0)
        complaints += still_there(stack)
        most_s = float(setting.count(10, 5))
        return conclude(stack, name, hit, most_recover_s=most_s, notes=f"away {away_s:g} s", complaints=complaints)


@fault("F17", "kill -9 of the store (fsync always), back after some seconds")
def killed_always(setting: Setting) -> Verdict:
    return _killed(setting, "F17", "always")


@fault("F17-everysec", "kill -9 of the store (fsync everysec), back after some seconds")
def killed_everysec(setting: Setting) -> Verdict:
    return _killed(setting, "F17-everysec", "everysec")


@fault("F18", "power cut with fsync always: kill -9 and cut the log at the last fsync")
def power_cut_always(setting: Setting) -> Verdict:
    verdict, _ = _power_cuts(setting, "F18", "always")
    return verdict


@fault("F18-everysec", "power cut with fsync everysec: only what is younger than a second may go")
def power_cut_everysec(setting: Setting) -> Verdict:
    verdict, cuts = _power_cuts(setting, "F18-everysec", "everysec")
    # Each second's fsync begins when the second is over, and takes its time; for a disk that lags the server waits until two.
    old = [entry for entry in cuts.lost if cuts.age_s(entry) > 2.0]
    complaints = [text for text in verdict.complaints if not text.startswith(("lost", "two ends", "stuck"))]
    complaints += (
        [f"{len(old)} lost acknowledgements were older than 2 s: {[cuts.age_s(entry) for entry in old[:5]]}"] if old else []
    )
    oldest = max(map(cuts.age_s, cuts.lost), default=0.0)
    notes = f"{verdict.notes}; {len(cuts.lost)} acknowledgements undone, the oldest {oldest:.2f} s old, as the mode allows"
    return replace(verdict, passed=not complaints, complaints=tuple(complaints), notes=notes)


class Cuts:
    """When the power went, and what went with it."""

    def __init__(self) -> None:
        # Of each cut: when it came, and when the server answered again.
        self.moments: list[tuple[float, float]] = []
        self.dropped = 0
        self.lost: list[Entry] = []

    def age_s(self, entry: Entry) -> float:
        """How old the acknowledgement was at the cut that undid it.

        One that was on its way at a cut arrives after it; until the server answers again there can be no other.
        """
        return next((max(0.0, at - entry.accepted_at) for at, again in self.moments if again > entry.accepted_at), 0.0)

    def make(self, stack: Stack) -> None:
        cut_at = time.time()
        stack.server.kill()
        self.dropped += stack.server.cut(stack.server.last_fsync().size)
        stack.server.start()
        self.moments.append((cut_at, time.time()))


def _power_cuts(setting: Setting, name: str, fsync: str) -> tuple[Verdict, Cuts]:
    stack = Stack(Plan(fsync=fsync, model=_BUSY), setting.folder)
    stack.server.note_fsyncs(setting.folder)
    # What the mode allows to be undone is then unknown to the store.
    stack.driver.also_expected = {404} if fsync == "everysec" else set()
    with started(stack):
        return cut_power(stack, name, rounds=setting.count(1, 5), random=setting.random)


def cut_power(stack: Stack, name: str, *, rounds: int, random: Random) -> tuple[Verdict, Cuts]:
    """The stack's server must note its fsyncs."""
    cuts, fsync = Cuts(), stack.plan.fsync
    flow = Flow(stack.driver, per_second=200.0)
    with stack.driver.watching(), flow.running():
        for _ in range(rounds):
            time.sleep(random.uniform(1.5, 3.0))
            cuts.make(stack)
    hit = healed_now(stack)
    _await_all(stack, fsync)
    notes = f"{rounds} cuts, {cuts.dropped} bytes of log dropped"
    within_s = 1.0 if fsync == "everysec" else 60.0
    verdict = conclude(stack, name, hit, within_s=within_s, notes=notes, complaints=still_there(stack))
    cuts.lost = [entry for entry in stack.driver.ledger.accepted() if is_lost(entry)]
    return verdict, cuts


def _await_all(stack: Stack, fsync: str) -> None:
    """Until every job that the store still knows has ended."""
    if fsync == "everysec":
        eventually(lambda: all(job.state.final for job in stack.dump().jobs.values()), timeout_s=60.0)


@fault("F19", "SIGSTOP of the store for longer than the lease")
def frozen(setting: Setting) -> Verdict:
    lease_s, frozen_s = (4.0, 6.0) if not setting.full else (15.0, 20.0)
    with whole_stack(Plan(workers=2, lease_s=lease_s, beat_s=lease_s / 4, model=_BUSY), setting.folder) as stack:
        flow = Flow(stack.driver, make=lambda: order("sleep", seconds=RUN_S))
        with stack.driver.watching(), flow.running():
            time.sleep(2.0)
            stack.server.signal(signal.SIGSTOP)
            complaints = refusal(stack, within_s=2.0)
            time.sleep(frozen_s)
            stack.server.signal(signal.SIGCONT)
            hit = healed_now(stack)
            time.sleep(2.0)
        most = max(1, len(stack.driver.ledger.accepted()) // 20)
        complaints += still_there(stack)
        return conclude(
            stack, "F19", hit, most_extra=most, notes=f"frozen {frozen_s:g} s, lease {lease_s:g} s", complaints=complaints
        )


@fault("F19-delay", "every answer of the store is 500 ms late")
def slow(setting: Setting) -> Verdict:
    with whole_stack(Plan(model=_BUSY), setting.folder) as stack:
        for link in stack.links:
            link.delay(0.25)
        stack.driver.submit_all(echoes(setting.count(20, 60)), within_s=60.0)
        hit = healed_now(stack)
        for link in stack.links:
            link.heal()
        return conclude(stack, "F19-delay", hit, most_extra=0)


@fault("F20", "the store comes back empty")
def emptied(setting: Setting) -> Verdict:
    with whole_stack(Plan(), setting.folder) as stack:
        old = stack.driver.submit_all(echoes(10))
        stack.driver.await_ends(old, within_s=30.0)
        stack.driver.also_expected = {404}
        with stack.asker.still():
            # Each kind of process must load the functions by itself: here the worker, and below the gateway.
            stack.gateway.signal_all(signal.SIGSTOP)
            stack.server.kill()
            shutil.rmtree(stack.server.folder / "appendonlydir")
            stack.server.start()
            eventually(lambda: _has_functions(stack))
            stack.gateway.signal_all(signal.SIGCONT)
            complaints = _without_worker(stack)
        missing = [stack.face.look(entry.job)[0].status for entry in old]
        complaints += [f"old jobs are answered {set(missing)}, not 404"] if set(missing) != {404} else []
        # What the store forgot is outside the promise: the ledger starts over with it.
        stack.driver.ledger.forget(old)
        stack.driver.submit_all(echoes(10))
        hit = healed_now(stack)
        complaints += still_there(stack)
        return conclude(stack, "F20", hit, most_extra=0, most_recover_s=5.0, complaints=complaints)


def _has_functions(stack: Stack) -> bool:
    with stack.server.client() as client:
        return bool(client.function_list())


def _without_worker(stack: Stack) -> list[str]:
    """The complaint of a gateway that is the first one to miss the functions."""
    stack.workers[0].signal_all(signal.SIGSTOP)
    with stack.server.client() as client:
        client.execute_command("FUNCTION", "FLUSH")
    work = order()
    answer = stack.face.submit(work["nonce"], work)[0]
    stack.workers[0].signal_all(signal.SIGCONT)
    return [] if answer.status == 202 else [f"without functions a submit is answered {answer.status} {answer.body[:200]!r}"]


@fault("F21", "failover to a replica that lags")
def failover(setting: Setting) -> Verdict:
    """Outside the promise: what the replica had not yet received is undone. What counts is that nothing else goes wrong."""
    with whole_stack(Plan(model=_BUSY), setting.folder) as stack:
        replica = Server(setting.folder / "replica", extra={"replicaof": f"127.0.0.1 {stack.server.port}"})
        replica.start()
        try:
            return _failed_over(stack, replica)
        finally:
            replica.stop()


def _failed_over(stack: Stack, replica: Server) -> Verdict:
    with replica.client() as client:
        eventually(lambda: client.info("replication")["master_link_status"] == "up", timeout_s=20.0)
        stack.driver.await_ends(stack.driver.submit_all(echoes(20)), within_s=30.0)
        # The link between the two goes before the primary does: the replica stands still.
        client.replicaof("127.0.0.1", 1)
        late = stack.driver.submit_all(echoes(10))
        stack.driver.await_ends(late, within_s=30.0)
        stack.driver.also_expected = {404}
        stack.server.kill()
        client.replicaof("NO", "ONE")
    for link in stack.links:
        link.target = replica.port
        link.reset()
    stack.server, primary = replica, stack.server
    try:
        undone = [entry for entry in late if stack.face.look(entry.job)[0].status == 404]
        stack.driver.ledger.forget(undone)
        stack.driver.submit_all(echoes(10))
        notes = f"{len(undone)} acknowledgements undone, as stated in the promise"
        verdict = conclude(stack, "F21", Hit(time.time()), notes=notes, complaints=still_there(stack))
    finally:
        stack.server = primary
    return verdict
