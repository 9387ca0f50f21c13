"""F2: kill -9 of whole worker groups, again and again, while a queue drains."""

from __future__ import annotations

import math
import time
from statistics import median

from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.ledger import Entry
from tests.faults.stack import Plan, Stack, whole_stack
from tests.faults.steps import await_running, conclude, echoes, errors_of, hit_on, owner, with_recovery
from tests.faults.storm import Storm, in_words

GROUPS = 3
BATCH = 4
ITEM_S = 0.12
# For half of the kills. Every group is killed as soon as it works, so whoever takes the jobs next has just been started.
MOST_RECOVER_S = 10.0
# Losses in a row, at the tenth of which a job is given up.
MOST_POISON_RUNS = 10


@fault("F2", "kill -9 of whole worker groups while a queue drains")
def kill_storm(setting: Setting) -> Verdict:
    jobs, kills = setting.count(36, 1_500), setting.count(6, 400)
    with whole_stack(Plan(workers=GROUPS, model={"max_batch_size": BATCH}), setting.folder) as stack:
        storm = Storm(stack.workers, stack.executions, setting.random)
        with stack.driver.watching(per_second=200.0):
            stack.driver.submit_all([order("sleep", seconds=ITEM_S) for _ in range(jobs)])
            storm.run(kills, waiting=lambda: len(stack.driver.ledger.waiting()), within_s=setting.count(60, 1_500))
        done = len(storm.kills)
        verdict = conclude(stack, "F2", within_s=120.0, most_extra=done * BATCH)
        recoveries = storm.recoveries()
        # With the small counts others may use the machine; how long a recovery takes is judged where the sheet is made.
        most_s = MOST_RECOVER_S if setting.full else math.inf
        return with_recovery(verdict, median(recoveries or [0.0]), most_s=most_s, notes=in_words(done, recoveries))


@fault("F2-poison", "one item of 24 takes its whole worker down, each time that it runs")
def worker_killer(setting: Setting) -> Verdict:
    """It must be found out by its losses, and its neighbours must not be taken for it."""
    with whole_stack(Plan(workers=2, model={"max_batch_size": BATCH}), setting.folder) as stack:
        stack.driver.submit_all(echoes(12, seconds=0.05))
        poison = stack.driver.submit(order("kill_worker"), hopes="failed")
        stack.driver.submit_all(echoes(11, seconds=0.05))
        deaths = _restart_until_ended(stack, poison, within_s=120.0)
        runs = stack.executions.runs()
        neighbours = max(count for nonce, count in runs.items() if nonce != poison.key)
        complaints = [f"the poison ran {runs[poison.key]} times"] if runs[poison.key] > MOST_POISON_RUNS else []
        complaints += [f"a neighbour ran {neighbours} times"] if neighbours > 3 else []
        complaints += [f"ended as {errors}"] if (errors := errors_of([poison])) != {"worker_lost"} else []
        return conclude(
            stack,
            "F2-poison",
            notes=f"{deaths} workers lost to it, neighbours ran {neighbours} times at most",
            complaints=complaints,
        )


def _restart_until_ended(stack: Stack, entry: Entry, *, within_s: float) -> int:
    """Start again what died, as a service manager does; how often that was."""
    deaths, give_up_at = 0, time.monotonic() + within_s
    while not entry.ended and time.monotonic() < give_up_at:
        for worker in stack.workers:
            if not worker.running:
                deaths += 1
                worker.start()
        stack.driver.look(entry)
        time.sleep(0.05)
    return deaths


@fault("F2-one", "kill -9 of one worker group of two")
def one_killed(setting: Setting) -> Verdict:
    """The other one misses the dead one's subscription and takes its jobs back."""
    with whole_stack(Plan(workers=2, model={"max_batch_size": BATCH}), setting.folder) as stack:
        return kill_one(stack, most_recover_s=3.0 + BATCH * 0.1)


def kill_one(stack: Stack, *, most_recover_s: float | None = None) -> Verdict:
    """Kill one of two workers, which stays dead."""
    stack.driver.submit_all(echoes(20, seconds=0.1))
    worker = owner(stack, await_running(stack))
    hit = hit_on(stack, worker)
    worker.kill()
    return conclude(stack, "F2-one", hit, most_extra=2 * BATCH, most_recover_s=most_recover_s)
