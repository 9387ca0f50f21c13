"""The links to the store break: reset, refused, silent, half open; the wake-ups go: F25 and F40."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.executions import Executions
from tests.faults.flow import Flow
from tests.faults.proxy import Proxy
from tests.faults.scenarios.store_loss import still_there
from tests.faults.stack import Plan, Stack, whole_stack
from tests.faults.steps import Hit, conclude, healed_now, with_recovery

RUN_S = 0.02
_WANT = "ps:{echo}:want"
_OFFERS = "ps:{echo}:offers:1"
Break = Callable[[Proxy], None]


def breaks(*, full: bool) -> dict[str, tuple[Break, int, float]]:
    """By name: what to do to a link, how often, and how long in all."""
    return {
        "reset": (Proxy.reset, 1, 0.0),
        "resets": (Proxy.reset, 5, 2.5),
        "refuse": (Proxy.refuse, 1, 5.0 if full else 2.0),
        "blackhole": (Proxy.blackhole, 1, 20.0 if full else 7.0),
        "half_open": (Proxy.half_open, 1, 0.0),
    }


def break_links(links: list[Proxy], act: Break, times: int, lasting_s: float) -> None:
    for _ in range(times):
        for link in links:
            act(link)
        time.sleep(lasting_s / times)
    for link in links:
        link.heal()


def progress_s(executions: Executions, hit: Hit, *, within_s: float) -> float:
    """Seconds from the healing to the first execution that began after it; infinity when none did in time."""
    until = time.monotonic() + within_s
    while True:
        later = [line.at - hit.at for line in executions.of("begin") if line.at > hit.at]
        if later or time.monotonic() > until:
            return min(later, default=float("inf"))
        time.sleep(0.1)


@fault("F25", "the links of gateway and worker to the store: reset, 5 resets, refused, silent, half open")
def links_broken(setting: Setting) -> Verdict:
    with whole_stack(Plan(model={"max_batch_size": 4}), setting.folder) as stack:
        # The limit of the score sheet is three; with the small counts others may use the machine.
        most_s = float(setting.count(8, 3))
        return break_and_heal(stack, breaks(full=setting.full), apart_s=1.0, within_s=10.0, most_s=most_s)


def break_and_heal(
    stack: Stack, breaks: Mapping[str, tuple[Break, int, float]], *, apart_s: float, within_s: float, most_s: float
) -> Verdict:
    """Each break begins `apart_s` after work has gone on, for which at most `within_s` is waited."""
    recovered: dict[str, float] = {}
    flow = Flow(stack.driver, make=lambda: order("sleep", seconds=RUN_S))
    with stack.driver.watching(), flow.running():
        for name, (act, times, lasting_s) in breaks.items():
            time.sleep(apart_s)
            break_links(stack.links, act, times, lasting_s)
            hit = healed_now(stack)
            recovered[name] = progress_s(stack.executions, hit, within_s=within_s)
    notes = ", ".join(f"{name} {took:.2f} s" for name, took in recovered.items())
    verdict = conclude(stack, "F25", notes=f"progress after {notes}", complaints=still_there(stack))
    return with_recovery(verdict, max(recovered.values()), most_s=most_s)


@fault("F40", "wake-ups lost: subscribers cut off again and again, Celery's own keys deleted")
def wakeups_lost(setting: Setting) -> Verdict:
    slow: list[float] = []
    with whole_stack(Plan(), setting.folder) as stack:
        for _ in range(setting.count(3, 20)):
            # A prediction would wake the worker in place of the wake-up that is lost.
            with stack.asker.still(), stack.server.client() as client:
                _silence(client)
                # A slot that subscribes again looks once, asks to be woken and offers to take the next job: only what it misses
                # after that is lost.
                eventually(lambda: client.exists(_WANT, _OFFERS) == 2)
                client.delete(_WANT, _OFFERS)
                entry = stack.driver.submit(order())
                at = time.time()
                stack.driver.await_ends([entry], within_s=20.0)
            # The view of a job that has not ended has 0 for the moment of its end.
            slow.append(entry.last.finished_at - at if entry.last and entry.ended else math.inf)
        verdict = conclude(stack, "F40", most_extra=0, complaints=still_there(stack))
        return with_recovery(verdict, max(0.0, *slow), most_s=2.0)


def _silence(client: Any) -> None:
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    for key in client.scan_iter("_kombu*"):
        client.delete(key)
    client.delete(_WANT)
