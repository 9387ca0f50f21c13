"""The worker process dies, freezes, is told to stop, or is cut off: F3, F4, F5, F26, F27."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import psutil

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.shims import build
from tests.faults.stack import MODEL, Plan, Stack, whole_stack
from tests.faults.steps import Hit, await_running, conclude, echoes, healed_now, hit_on, owner

# The gateway's clock is off by as much to the other side.
WORKER_CLOCKS_AHEAD_S = (-3600, -20, 20, 3600)
WORKER_SITES = ("after_claim", "before_run", "after_blob_before_finish", "after_finish_before_reply", "in_sweep", "in_release")
# Over the size up to which outputs are stored in the record: the blob sites must be passed with a blob.
LARGE = 100_000


@fault("F3", "kill -9 of the worker at each failpoint")
def killed_at_failpoints(setting: Setting) -> Verdict:
    rounds = setting.count(1, 8)
    with whole_stack(Plan(model={"max_batch_size": 4, "max_attempts": 50, "max_crashes": 3}), setting.folder) as stack:
        return kill_at_sites(stack, WORKER_SITES * rounds, setting.random)


def kill_at_sites(stack: Stack, sites: Sequence[str], random: Random) -> Verdict:
    """Kill the stack's first worker at each of the sites, in this order; no other worker may run."""
    worker = stack.workers[0]
    for site in sites:
        worker.stop()
        worker.start(PENSTOCK_FAULT=f"{site}:kill:{random.randint(1, 1 if site == 'in_release' else 3)}")
        _work_for(stack, site)
        worker.wait(60.0)
    hit = healed_now(stack)
    worker.start()
    notes = f"{len(sites)} kills at {len(set(sites))} sites"
    return conclude(stack, "F3", hit, within_s=120.0, most_extra=12 * len(sites), notes=notes)


def _work_for(stack: Stack, site: str) -> None:
    """Enough work to reach the site: some with outputs that become blobs; for a release, one that crashes the child."""
    stack.driver.submit_all([*echoes(6), *echoes(6, pad=LARGE)])
    if site == "in_release":
        stack.driver.submit(order("segfault"), hopes="failed")


@fault("F4", "SIGTERM in mid-batch: one that fits the grace, one that does not")
def told_to_stop(setting: Setting) -> Verdict:
    grace_s = 3.0
    with whole_stack(Plan(workers=2, grace_s=grace_s, model={"max_batch_size": 2}), setting.folder) as stack:
        stack.workers[1].stop()
        short_s, complaints = _stop_within(stack, echoes(2, seconds=0.75), limit_s=grace_s + 1.0)
        repeated = stack.executions.extra(set(stack.driver.ledger.entries))
        complaints += [f"{repeated} runs repeated though the batch fitted the grace"] if repeated else []
        for worker in stack.workers:
            worker.start()
        stack.await_ready()
        stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=30.0)
        long_s, more = _stop_within(stack, echoes(1, seconds=8.0), limit_s=grace_s + 1.0)
        ended = healed_now(stack)
        again = eventually(lambda: [line for line in stack.executions.of("begin") if line.nonce in ended.nonces][1:])[0]
        more += [f"begun again {again.at - ended.at:.1f} s later"] if again.at - ended.at > 1.0 else []
        lost = stack.counters().get("redelivered:worker_lost", 0)
        more += [f"{lost} jobs were taken back from a lost worker instead of given back"] if lost else []
        notes = f"exits after {short_s:.1f} and {long_s:.1f} s of a grace of {grace_s:g} s"
        return conclude(stack, "F4", ended, most_extra=2, notes=notes, complaints=[*complaints, *more])


def _stop_within(stack: Stack, works: list[dict[str, Any]], *, limit_s: float) -> tuple[float, list[str]]:
    # A prediction would take a place in the batch.
    with stack.asker.still():
        stack.driver.submit_all(works)
        worker = owner(stack, await_running(stack))
    since = time.monotonic()
    worker.signal(signal.SIGTERM)
    code = worker.wait(limit_s + 20.0)
    took_s = time.monotonic() - since
    complaints = [f"exit code {code}"] if code else []
    return took_s, complaints + ([f"ended after {took_s:.1f} s, {limit_s:g} s allowed"] if took_s > limit_s else [])


@fault("F5", "zombie: SIGSTOP of worker and child for twice the lease, then SIGCONT")
def zombie(setting: Setting) -> Verdict:
    lease_s = float(setting.count(3, 15))
    plan = Plan(workers=2, lease_s=lease_s, beat_s=lease_s / 4, model={"max_batch_size": 4})
    with whole_stack(plan, setting.folder) as stack:
        stack.driver.submit_all(echoes(4, seconds=0.5))
        frozen = owner(stack, await_running(stack))
        # What the other one runs it settles itself, and under the token that it had: that once passed for the zombie's doing.
        hit = hit_on(stack, frozen)
        frozen.signal_all(signal.SIGSTOP)
        # What it had written to the store before it froze is its own to settle: on a slow machine that came after the look.
        time.sleep(0.3)
        tokens = _tokens(stack)
        held = [token for token in tokens.values() if token]
        time.sleep(2 * lease_s)
        done = stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=30.0)
        frozen.signal_all(signal.SIGCONT)
        eventually(lambda: "lease_lost" in stack.logs() or stack.counters().get("stale"), timeout_s=10.0)
        # Room for whatever the zombie still has to say.
        time.sleep(1.0)
        complaints = [] if done else ["nobody took the frozen worker's jobs"]
        complaints += _settled_by(stack, tokens, hit)
        notes = f"lease {lease_s:g} s, {len(held)} leases held when frozen, {stack.counters().get('stale', 0)} stale answers"
        most_s = lease_s + setting.count(10, 5)
        return conclude(stack, "F5", hit, most_extra=8, most_recover_s=most_s, notes=notes, complaints=complaints)


@fault("F5-late", "zombie: it freezes right before it settles, and wakes up after another worker has settled")
def late_zombie(setting: Setting) -> Verdict:
    """What a zombie settles must meet the fence. In F5 it mostly hears of its lost lease before it has anything to settle."""
    lease_s = float(setting.count(3, 15))
    with whole_stack(Plan(workers=2, lease_s=lease_s, beat_s=lease_s / 4), setting.folder) as stack:
        for worker in stack.workers:
            worker.stop()
        return freeze_before_settling(stack)


def freeze_before_settling(stack: Stack) -> Verdict:
    """Start the first of two workers, which freezes, and then the other one."""
    zombie, other = stack.workers
    # A prediction would be settled first.
    with stack.asker.still():
        zombie.start(PENSTOCK_FAULT="after_blob_before_finish:stop")
        stack.driver.submit_all(echoes(1))
        eventually(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED, timeout_s=60.0)
        hit = healed_now(stack)
        tokens = _tokens(stack)
        other.start()
        done = stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=60.0)
        stale = stack.counters().get("stale", 0)
        zombie.signal(signal.SIGCONT)
        eventually(lambda: stack.counters().get("stale", 0) > stale or _settled_by(stack, tokens, hit))
    complaints = [] if done else ["nobody took the frozen worker's job"]
    complaints += _settled_by(stack, tokens, hit)
    return conclude(stack, "F5-late", hit, most_extra=1, complaints=complaints)


def _tokens(stack: Stack) -> dict[str, str]:
    return {serial: job.token for serial, job in stack.dump().jobs.items()}


def _settled_by(stack: Stack, frozen: dict[str, str], hit: Hit) -> list[str]:
    """A job that the zombie ran when it froze must have been settled under another token."""
    serials = {entry.job.removesuffix(f"-{MODEL}") for entry in stack.driver.ledger.accepted() if entry.key in hit.nonces}
    after = stack.dump().jobs
    return [f"{serial} was settled by the zombie" for serial in serials if after[serial].final_token == frozen[serial] != ""]


@fault("F26", "one worker cut off from the store for longer than its lease")
def cut_off(setting: Setting) -> Verdict:
    lease_s = float(setting.count(4, 15))
    plan = Plan(workers=2, lease_s=lease_s, beat_s=lease_s / 4, model={"max_batch_size": 1})
    # What is cut off runs for longer than the lease, and the batch behind it would begin while nobody holds it.
    long_s = lease_s + 2.0
    with whole_stack(plan, setting.folder) as stack:
        worker, other = stack.workers
        worker.stop()
        other.stop()
        with stack.asker.still():
            # The first claim sees that more waits, so that the second one does not wait for the end of the first batch.
            stack.driver.submit_all([*echoes(2, seconds=long_s), *echoes(1)], threads=1)
            worker.start()
            await_running(stack)
            eventually(lambda: sum(map(bool, _tokens(stack).values())) == 2)
            stack.worker_links[0].blackhole()
        hit = hit_on(stack, worker)
        other.start()
        time.sleep(2 * lease_s)
        stack.worker_links[0].heal()
        late = [
            line for line in stack.executions.of("begin") if line.supervisor == worker.pid and line.at > hit.at + lease_s + 1
        ]
        begun = [line for line in late if line.at < hit.at + 2 * lease_s]
        complaints = [f"{len(begun)} runs begun by the cut worker more than 1 s after its lease"] if begun else []
        return conclude(stack, "F26", hit, most_extra=2, most_recover_s=lease_s + long_s + 5.0, complaints=complaints)


@fault("F27", "the wall clocks of worker and gateway are 20 s or an hour off, one each way")
def clocks_off(setting: Setting) -> Verdict:
    complaints: list[str] = []
    with whole_stack(Plan(), setting.folder) as stack:
        library = str(build("clock", setting.folder))
        for ahead_s in WORKER_CLOCKS_AHEAD_S:
            stack.gateway.stop()
            stack.workers[0].stop()
            stack.gateway.start(LD_PRELOAD=library, CLOCK_OFFSET_S=str(-ahead_s))
            stack.workers[0].start(LD_PRELOAD=library, CLOCK_OFFSET_S=str(ahead_s))
            stack.await_gateway()
            entries = stack.driver.submit_all(echoes(setting.count(5, 25), seconds=0.05))
            stack.driver.await_ends(entries, within_s=60.0)
            complaints += [f"worker {ahead_s} s ahead: {fault}" for fault in _unserved(stack)]
        return conclude(stack, "F27", most_extra=0, complaints=complaints)


def _unserved(stack: Stack) -> list[str]:
    """What the gateway does not answer as it should while a worker serves the model; the worker has run jobs already."""
    predicted = stack.face.ask(
        "POST", f"/predictions/{MODEL}", json.dumps(order()).encode(), {"content-type": "application/json"}
    )
    ready, workers = stack.face.ask("GET", "/readyz"), stack.face.ask("GET", "/v1/workers")
    found = [
        f"{name} answered {got.status}" for name, got in (("a prediction", predicted), ("/readyz", ready)) if got.status != 200
    ]
    return found if MODEL in workers.body.decode() else [*found, f"/v1/workers shows no worker: {workers.body.decode()[:200]}"]


@fault("F27-store", "the store's wall clock steps an hour forward, then back")
def store_clock_steps(setting: Setting) -> Verdict:
    with whole_stack(Plan(workers=2, model={"deadline_s": 20_000.0, "max_batch_size": 2}), setting.folder) as stack:
        library = str(build("clock", setting.folder))
        stack.driver.submit_all(echoes(40, seconds=0.1))
        for offset in ("3600", "0"):
            await_running(stack)
            stack.server.kill()
            stack.server.environment |= {"LD_PRELOAD": library, "CLOCK_OFFSET_S": offset}
            stack.server.start()
        return conclude(stack, "F27-store", notes="with a deadline beyond the step; a shorter one expires early, as documented")
