"""What a word of the interface means under stress: one key one job, one winner of a race, gone after its time: F34 to F37."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict, judge, with_asked
from tests.faults.driver import order
from tests.faults.echo import digest
from tests.faults.flow import Flow
from tests.faults.ledger import Entry
from tests.faults.stack import Plan, Stack, bare_stack, whole_stack
from tests.faults.steps import await_running, conclude, echoes

_LARGE = 100_000


@fault("F34", "50 submits at once under one key; then the key with another body")
def one_key(setting: Setting) -> Verdict:
    with whole_stack(Plan(), setting.folder) as stack:
        return submit_under_one_key(stack, rounds=setting.count(3, 30))


def submit_under_one_key(stack: Stack, *, rounds: int) -> Verdict:
    complaints = []
    with ThreadPoolExecutor(50) as pool:
        for _ in range(rounds):
            before = stack.made()
            work = order()
            entry = stack.driver.ledger.open_entry(work["nonce"], digest(work), "succeeded")
            list(pool.map(lambda _: stack.driver.submit_once(entry, work), range(50)))  # noqa: B023 - awaited here
            made = stack.made() - before
            other = stack.face.submit(entry.key, order())[0].status
            complaints += [f"{made} jobs under one key"] if made != 1 else []
            complaints += [f"the key with another body is answered {other}"] if other != 422 else []
        return conclude(stack, "F34", most_extra=0, complaints=complaints)


@fault("F35", "cancel in every state, and as the job ends")
def cancelled(setting: Setting) -> Verdict:
    races = setting.count(150, 10_000)
    with bare_stack(Plan(model={"max_batch_size": 1}), setting.folder) as stack:
        stack.gateway.start()
        stack.await_gateway()
        waiting = stack.driver.submit(order(), hopes="cancelled")
        complaints = _expect(stack, waiting, 202, "queued")
        stack.workers[0].start()
        stack.await_ready()
        running = stack.driver.submit(order("sleep", seconds=4.0), hopes="cancelled")
        await_running(stack)
        complaints += _expect(stack, running, 202, "running")
        done = stack.driver.submit(order())
        stack.driver.await_ends([done], within_s=20.0)
        complaints += _expect(stack, done, 409, "ended")
        return race_cancels(stack, races=races, complaints=complaints)


def race_cancels(stack: Stack, *, races: int, complaints: Iterable[str] = ()) -> Verdict:
    with ThreadPoolExecutor(8) as pool:
        raced = [fault for found in pool.map(lambda n: _race(stack, n), range(races)) for fault in found]
    return conclude(stack, "F35", notes=f"{races} races of a cancel with an end", complaints=[*complaints, *raced])


def _expect(stack: Stack, entry: Entry, status: int, state: str) -> list[str]:
    answer = stack.face.ask("POST", f"/v1/jobs/{entry.job}/cancel")
    return [] if answer.status == status else [f"cancel of a {state} job is answered {answer.status} {answer.body[:200]!r}"]


def _race(stack: Stack, number: int) -> list[str]:
    """Cancel at about the moment of the end. Whoever wins, the answer, the status and the result must tell the same."""
    entry = stack.driver.submit(order())
    time.sleep((number % 20) * 0.0005)
    answer = stack.face.ask("DELETE", f"/v1/jobs/{entry.job}")
    entry.hopes = "cancelled" if answer.status == 202 else "succeeded"
    stack.driver.await_ends([entry], within_s=20.0)
    result = stack.face.ask("GET", f"/v1/jobs/{entry.job}/result").status
    last = entry.last.status if entry.last else "nothing"
    agreed = answer.status in (202, 409) and last == entry.hopes and (result == 200) == (last == "succeeded")
    return [] if agreed else [f"cancel said {answer.status}, the status says {last}, the result {result}"]


@fault("F36", "reads around the end of retention; blobs go with their records")
def retention_over(setting: Setting) -> Verdict:
    ttl_s = 3.0
    with whole_stack(Plan(model={"result_ttl_s": ttl_s, "sync_result_ttl_s": ttl_s}), setting.folder) as stack:
        stack.driver.also_expected = {410}
        entries = stack.driver.submit_all(echoes(setting.count(4, 40), pad=_LARGE, pad_in="x" * _LARGE))
        stack.driver.await_ends(entries, within_s=20.0)
        before = {stack.face.ask("GET", f"/v1/jobs/{entry.job}/result").status for entry in entries}
        path = f"/v1/jobs/{entries[0].job}"
        status = eventually(lambda: (found := stack.face.ask("GET", path).status) != 200 and found, timeout_s=ttl_s + 5.0)
        asked = stack.asker.conclude()
        eventually(lambda: not stack.records(), timeout_s=ttl_s + 5.0)
        torn = {stack.face.ask("GET", f"/v1/jobs/{entry.job}/result").status for entry in entries}
        eventually(lambda: not stack.blobs(), timeout_s=30.0)
        complaints = [] if (before, status, torn) == ({200}, 410, {410}) else [f"answered {before}, then {status}, then {torn}"]
        verdict = judge("F36", "penstock", stack.driver.ledger, stack.executions, dump=stack.dump(), complaints=complaints)
        return with_asked(verdict, asked)


@fault("F37", "under load a new version is loaded, takes over and the old one goes; in the middle a worker is killed")
def version_changed(setting: Setting) -> Verdict:
    with whole_stack(Plan(workers=2, beat_s=1.0), setting.folder) as stack:
        flow = Flow(stack.driver, per_second=setting.count(20, 60))
        with stack.driver.watching(), flow.running():
            complaints = _change(stack, "POST", "versions", {"version": "2", "source": "echo.py:Echo"}, 202)
            eventually(lambda: _slots(stack)["2"], timeout_s=30.0)
            # Enough that jobs still wait for the old version when a removed one may go: five seconds and a beat later.
            stack.driver.submit_all(echoes(100, seconds=0.2))
            complaints += _change(stack, "PUT", "default", {"version": "2"}, 200)
            complaints += _change(stack, "DELETE", "versions/1", None, 202)
            stack.workers[0].kill()
            stack.workers[0].start()
            eventually(lambda: not _slots(stack)["1"] and _slots(stack)["2"], timeout_s=60.0)
            time.sleep(1.0)
        entries = stack.driver.ledger.accepted()
        stack.driver.await_ends(entries, within_s=30.0)
        ran = Counter(stack.face.ask("GET", f"/v1/jobs/{entry.job}").json()["version"] for entry in entries)
        complaints += [f"ran by version {dict(ran)}"] if ran.keys() != {"1", "2"} else []
        gone = stack.face.ask("POST", "/v1/models/echo/versions/1/jobs", b"{}", {"content-type": "application/json"}).status
        complaints += [f"the removed version is answered {gone}"] if gone != 404 else []
        return conclude(stack, "F37", notes=f"{ran['1']} jobs by the old version, {ran['2']} by the new", complaints=complaints)


def _change(stack: Stack, method: str, what: str, body: dict[str, str] | None, status: int) -> list[str]:
    told = json.dumps(body).encode() if body else b""
    answer = stack.face.ask(method, f"/v1/models/echo/{what}", told, {"content-type": "application/json"})
    return [] if answer.status == status else [f"{method} {what} is answered {answer.status} {answer.body[:200]!r}"]


def _slots(stack: Stack) -> Counter[str]:
    """Ready slots per version."""
    versions = stack.face.ask("GET", "/v1/models/echo").json()["versions"]
    return Counter({name: version.get("ready_slots", 0) for name, version in versions.items()})
