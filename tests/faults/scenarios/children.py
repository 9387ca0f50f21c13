"""The child process dies, hangs, raises, runs out of memory or cannot start: F1, F6 to F10, F12, F13."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import psutil

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.stack import Plan, Stack, bare_stack, whole_stack
from tests.faults.steps import await_running, conclude, echoes, ended_as, errors_of, healed_now, hit_now

BATCH = 8
_MIB = 1 << 20


def start_with_queue(stack: Stack) -> None:
    """The gateway is ready and the worker is not yet: what is submitted now is taken as full batches later."""
    stack.gateway.start()
    stack.await_gateway()


@fault("F1", "kill -9 of the child in mid-batch")
def child_killed(setting: Setting) -> Verdict:
    with whole_stack(Plan(model={"max_batch_size": BATCH}), setting.folder) as stack:
        # One second, the load, and the run of the job itself.
        return kill_child(stack, most_recover_s=lambda: 1.0 + _load_s(stack) + 0.3)


def kill_child(stack: Stack, *, most_recover_s: Callable[[], float | None] = lambda: None) -> Verdict:
    stack.driver.submit_all(echoes(BATCH, seconds=0.3))
    running = await_running(stack)
    hit = hit_now(stack)
    os.kill(running.pid, signal.SIGKILL)
    return conclude(stack, "F1", hit, most_extra=BATCH, most_recover_s=most_recover_s())


def _load_s(stack: Stack) -> float:
    """How long the first process took from the start of its worker until it had loaded the model, on this machine today."""
    started_at: float = psutil.Process(stack.workers[0].pid).create_time()
    return stack.executions.of("load")[0].at - started_at


@fault("F6", "SIGSTOP of the child only: the run limit must end it")
def child_frozen(setting: Setting) -> Verdict:
    max_run_s = 2.0
    with bare_stack(Plan(model={"max_run_s": max_run_s, "max_batch_size": 2}), setting.folder) as stack:
        start_with_queue(stack)
        # Batches of two: one alone that runs out of its time has failed, of two nobody knows which did it.
        stack.driver.submit_all(echoes(4, seconds=0.3))
        stack.workers[0].start()
        running = await_running(stack)
        hit = hit_now(stack)
        os.kill(running.pid, signal.SIGSTOP)
        return conclude(stack, "F6", hit, most_extra=4, most_recover_s=max_run_s + 4.0)


@fault("F6-gil", "a handler holds the GIL for longer than the lease")
def gil_held(setting: Setting) -> Verdict:
    lease_s = float(setting.count(4, 15))
    hold_s = lease_s + 5.0
    with whole_stack(Plan(workers=2, lease_s=lease_s, beat_s=lease_s / 4), setting.folder) as stack:
        stack.driver.submit_all([order("hold_gil", seconds=hold_s)])
        return conclude(stack, "F6-gil", most_extra=0, within_s=hold_s + 20.0, notes=f"held {hold_s:g} s, lease {lease_s:g} s")


@fault("F7", "a handler sleeps for ever on one item of 8")
def item_hangs(setting: Setting) -> Verdict:
    plan = Plan(model={"max_run_s": 2.0, "max_batch_size": BATCH})
    with bare_stack(plan, setting.folder) as stack:
        start_with_queue(stack)
        stack.driver.submit(order("sleep", seconds=3_600.0), hopes="failed")
        good = stack.driver.submit_all(echoes(BATCH - 1))
        stack.workers[0].start()
        verdict = conclude(stack, "F7", most_extra=2 * BATCH)
        return _with_errors(verdict, stack, {"timeout"}, succeeded=ended_as(good, "succeeded"))


@fault("F8", "one item of 8 raises")
def item_raises(setting: Setting) -> Verdict:
    with bare_stack(Plan(model={"max_batch_size": BATCH}), setting.folder) as stack:
        start_with_queue(stack)
        # In the middle: as the last one it may be alone in a batch without anybody's doing.
        good = stack.driver.submit_all(echoes(4))
        stack.driver.submit(order("raise"), hopes="failed")
        good += stack.driver.submit_all(echoes(BATCH - 5))
        stack.workers[0].start()
        stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=60.0)
        # A prediction that was asked for meanwhile costs one call of its own at most.
        asked = len(stack.executions.runs().keys() - stack.driver.ledger.entries.keys())
        calls = len(stack.executions.of("call")) - asked
        complaints = [f"{calls} handler calls, at most 7 allowed"] if calls > 7 else []
        verdict = conclude(stack, "F8", notes=f"{calls} handler calls", complaints=complaints)
        return _with_errors(verdict, stack, {"handler_error"}, succeeded=ended_as(good, "succeeded"))


@fault("F9", "one item of 8 is a segmentation fault")
def item_crashes(setting: Setting) -> Verdict:
    with bare_stack(Plan(model={"max_batch_size": BATCH}), setting.folder) as stack:
        start_with_queue(stack)
        # In the middle: as the last one it may be alone in a batch without anybody's doing.
        good = stack.driver.submit_all(echoes(4))
        bad = stack.driver.submit(order("segfault"), hopes="failed")
        good += stack.driver.submit_all(echoes(BATCH - 5))
        stack.workers[0].start()
        stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=60.0)
        runs = stack.executions.runs()[bad.key]
        complaints = [f"the poison ran {runs} times"] if runs > 3 else []
        verdict = conclude(stack, "F9", most_extra=2 * BATCH, notes=f"the poison ran {runs} times", complaints=complaints)
        return _with_errors(verdict, stack, {"poison"}, succeeded=ended_as(good, "succeeded"))


@fault("F10", "memory runs out over 2 items; one item never fits")
def memory_short(setting: Setting) -> Verdict:
    count = setting.count(12, 60)
    with bare_stack(Plan(model={"max_batch_size": BATCH}, options={"fits": 2}), setting.folder) as stack:
        start_with_queue(stack)
        good = stack.driver.submit_all(echoes(count))
        stack.driver.submit(order("exhaust"), hopes="failed")
        stack.workers[0].start()
        verdict = conclude(stack, "F10", notes="handlers that raise; real device memory is not tried here")
        return _with_errors(verdict, stack, {"oom"}, succeeded=ended_as(good, "succeeded"), of=count)


@fault("F12", "the model leaks memory up to the limit of its process")
def memory_leaks(setting: Setting) -> Verdict:
    # 40 calls of 20 MiB are twice what the limit leaves.
    model = {"max_batch_size": 1, "memory_limit_bytes": 700 * _MIB}
    plan = Plan(model=model, options={"leak_mib": 20}, growth_mib=700)
    with whole_stack(plan, setting.folder) as stack:
        for work in echoes(40):
            stack.driver.submit(work)
        stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=60.0)
        return conclude(stack, "F12", notes=f"{len(stack.executions.of('load'))} loads")


@fault("F13", "the model cannot be loaded at first")
def load_fails(setting: Setting) -> Verdict:
    broken = setting.folder / "broken"
    plan = Plan(options={"broken": str(broken)})
    with bare_stack(plan, setting.folder) as stack:
        broken.touch()
        start_with_queue(stack)
        stack.driver.submit_all(echoes(5))
        stack.workers[0].start()
        eventually(lambda: len(stack.executions.of("load")) >= 3, timeout_s=30.0)
        said = stack.face.ask("GET", "/readyz")
        complaints = [] if b"echo" in said.body else [f"readiness does not name the model: {said.body[:200]!r}"]
        broken.unlink()
        return conclude(stack, "F13", healed_now(stack), complaints=complaints, notes="three loads failed before")


def _with_errors(verdict: Verdict, stack: Stack, codes: set[str], *, succeeded: int, of: int = BATCH - 1) -> Verdict:
    """The verdict, and whether the one bad item ended with its own error while all others succeeded."""
    found = errors_of(stack.driver.ledger.accepted())
    complaints = [] if found == codes else [f"errors {sorted(found)} instead of {sorted(codes)}"]
    complaints += [] if succeeded == of else [f"{succeeded} of {of} neighbours succeeded"]
    return replace(verdict, passed=verdict.passed and not complaints, complaints=(*verdict.complaints, *complaints))
