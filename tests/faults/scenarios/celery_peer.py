"""The comparison: plain Celery on Redis under the same kills, the same store loss, the same broken links."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median

from tests.faults.catalogue import CELERY, Setting, fault
from tests.faults.celery_stack import CeleryStack, celery_stack
from tests.faults.checker import Verdict, judge, recovery_s
from tests.faults.driver import order
from tests.faults.flow import Flow
from tests.faults.scenarios.kill_storm import BATCH, GROUPS, ITEM_S, MOST_RECOVER_S
from tests.faults.scenarios.links import RUN_S, break_links, breaks, progress_s
from tests.faults.steps import Hit, with_recovery
from tests.faults.storm import Storm, in_words

# More than the longest redelivery that was seen, 104 s: when for so long nothing has ended, what is still out counts as lost.
PATIENCE_S = 120.0
_LOOK_S = 10.0


def conclude(
    stack: CeleryStack, name: str, hit: Hit | None = None, *, notes: str = "", complaints: Iterable[str] = ()
) -> Verdict:
    entries = stack.driver.ledger.accepted()
    quiet_s = 0.0
    while quiet_s < PATIENCE_S:
        before = len(stack.driver.ledger.waiting())
        if stack.driver.await_ends(entries, within_s=_LOOK_S):
            break
        quiet_s = quiet_s + _LOOK_S if len(stack.driver.ledger.waiting()) == before else 0.0
    stack.driver.look_again()
    recover_s = recovery_s(entries, hit.nonces, hit.at) if hit else None
    return judge(name, CELERY, stack.driver.ledger, stack.executions, recover_s=recover_s, notes=notes, complaints=complaints)


def healed_now(stack: CeleryStack) -> Hit:
    return Hit(time.time(), {entry.key for entry in stack.driver.ledger.waiting()})


@fault("F2", "kill -9 of whole worker groups while a queue drains", system=CELERY)
def kill_storm(setting: Setting) -> Verdict:
    jobs, kills = setting.count(60, 1_500), setting.count(12, 400)
    with celery_stack(setting.folder, workers=GROUPS, concurrency=BATCH) as stack:
        storm = Storm(stack.workers, stack.executions, setting.random)
        with stack.driver.watching(per_second=200.0):
            stack.driver.submit_all([order("sleep", seconds=ITEM_S * BATCH) for _ in range(jobs)])
            storm.run(kills, waiting=lambda: len(stack.driver.ledger.waiting()), within_s=setting.count(60, 1_500))
        verdict = conclude(stack, "F2")
        recoveries = storm.recoveries()
        notes = in_words(len(storm.kills), recoveries)
        return with_recovery(verdict, median(recoveries or [0.0]), most_s=MOST_RECOVER_S, notes=notes)


@fault("F17", "kill -9 of the store (fsync always), back after some seconds", system=CELERY)
def store_killed(setting: Setting) -> Verdict:
    away_s = float(setting.count(2, 5))
    with celery_stack(setting.folder) as stack:
        flow = Flow(stack.driver, make=lambda: order("sleep", seconds=RUN_S))
        with stack.driver.watching(), flow.running():
            time.sleep(2.0)
            stack.server.kill()
            time.sleep(away_s)
            stack.server.start()
            hit = healed_now(stack)
            time.sleep(3.0)
        return conclude(stack, "F17", hit, notes=f"away {away_s:g} s")


@fault("F25", "the link of the worker to the store: reset, 5 resets, refused, silent, half open", system=CELERY)
def links_broken(setting: Setting) -> Verdict:
    recovered: dict[str, float] = {}
    with celery_stack(setting.folder) as stack:
        flow = Flow(stack.driver, make=lambda: order("sleep", seconds=RUN_S))
        with stack.driver.watching(), flow.running():
            for name, (act, times, lasting_s) in breaks(full=setting.full).items():
                time.sleep(1.0)
                break_links(stack.worker_links, act, times, lasting_s)
                hit = healed_now(stack)
                time.sleep(4.0)
                recovered[name] = progress_s(stack.executions, hit, within_s=10.0)
        notes = ", ".join(f"{name} {took:.2f} s" for name, took in recovered.items())
        verdict = conclude(stack, "F25", notes=f"progress after {notes}")
        return with_recovery(verdict, max(recovered.values()), most_s=3.0)
