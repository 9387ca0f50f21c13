"""kill -9 of gateway, worker and store while events are sent to receivers, most of which misbehave: F32."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from urllib.parse import urlencode

from standardwebhooks import Webhook, WebhookVerificationError

from penstock.extensions.webhooks.webhook import new_signing_key, owner_secret
from penstock.loadtest.stack import free_port
from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.face import Answer, HttpFace
from tests.faults.flow import Flow
from tests.faults.ledger import Entry
from tests.faults.processes import Group
from tests.faults.scenarios.store_loss import still_there
from tests.faults.server import Server
from tests.faults.stack import Plan, Stack, started
from tests.faults.steps import conclude
from tests.webhook_receiver import Received, Receiver, Say, receiver

KEY = new_signing_key()
TIMEOUT_S = 1.0
DELIVERED_WITHIN_S = 120.0
# Until the storm is over, each receiver answers so, but now and then.
ANSWERS: dict[str, Say] = {
    "good": Say(),
    "slow": Say(wait_s=0.3),
    "hangs": Say(wait_s=2 * TIMEOUT_S),
    "error": Say(500),
    "busy": Say(429, {"retry-after": "1"}),
    "cut": Say(200, cut=True),
    "moved": Say(301, {"location": "/inside"}),
    "gone": Say(410),
}
# What listens only after the storm.
DEAD = "dead"
NONE = "none"
KINDS = (*ANSWERS, DEAD, NONE)
EVENTS = "job.succeeded,job.failed,job.cancelled,job.expired,job.progress"


class HookFace(HttpFace):
    """Every job has the receiver that its key decides, or no webhook."""

    def __init__(self, port: int, urls: dict[str, str]) -> None:
        super().__init__(port)
        self._urls = urls

    def submit(self, key: str, order: dict[str, Any]) -> tuple[Answer, str]:
        kind = kind_of(key)
        query = {} if kind == NONE else {"webhook": f"{self._urls[kind]}{kind}", "webhook_events": EVENTS}
        headers = {"content-type": "application/json", "idempotency-key": key}
        answer = self.ask("POST", f"/v1/models/echo/jobs?{urlencode(query)}", json.dumps(order).encode(), headers)
        return answer, answer.json()["id"] if answer.status == 202 else ""


def kind_of(key: str) -> str:
    return KINDS[int(key, 16) % len(KINDS)]


class Receivers:
    """One per kind, since a receiver that misbehaves must hold up no other. `heal` ends their misbehaviour."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._open = ExitStack()
        self._dead_port = free_port()
        self.receivers: dict[str, Receiver] = {}
        self.urls: dict[str, str] = {DEAD: f"http://127.0.0.1:{self._dead_port}/"}

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._open:
            for kind in ANSWERS:
                found = self.receivers[kind] = self._open.enter_context(receiver())
                self.urls[kind] = found.url
                found.answer = self._answers(kind)
            yield

    def heal(self) -> None:
        for kind, found in self.receivers.items():
            if kind != "gone":
                found.answer = lambda request: Say()
        self.receivers[DEAD] = self._open.enter_context(receiver(self._dead_port))

    def _answers(self, kind: str) -> Callable[[Received], Say]:
        # Of the bad answers some are good, so that no circuit stays closed all the time.
        return lambda request: ANSWERS[kind] if kind == "gone" or self._random.random() < 0.8 else Say()

    def requests(self) -> list[Received]:
        return [request for found in self.receivers.values() for request in list(found.requests)]


class Ends:
    """What the receivers got, by job: the events of its end, and all of them in the order of their arrival."""

    def __init__(self, requests: list[Received]) -> None:
        self.by_job: dict[str, list[Received]] = defaultdict(list)
        for request in sorted(requests, key=lambda one: one.at):
            self.by_job[request.event["data"]["id"]].append(request)

    def has_end(self, job: str) -> bool:
        return any(one.event["type"] != "job.progress" for one in self.by_job.get(job, ()))

    def complaints(self, entries: list[Entry]) -> list[str]:
        known = {entry.job: entry for entry in entries}
        return [
            *self._named("events of jobs that have no webhook", [job for job in self.by_job if self._is_wrong(job, known)]),
            *self._named("an end was not delivered", [job for job, one in known.items() if self._lacks(job, one)]),
            *self._named("one end under two ids", [job for job in self.by_job if self._ids(job) > 1]),
            *self._named("one id with two bodies", [job for job in self.by_job if self._has_two_bodies(job)]),
            *self._named("an older event behind a newer one", [job for job in self.by_job if self._is_disordered(job)]),
            *self._named("the event says another end", [job for job in self.by_job if self._lies(job, known)]),
        ]

    def _is_wrong(self, job: str, known: dict[str, Entry]) -> bool:
        return job not in known or kind_of(known[job].key) == NONE

    def _lacks(self, job: str, entry: Entry) -> bool:
        return kind_of(entry.key) not in (NONE, "gone") and not self.has_end(job)

    def _ids(self, job: str) -> int:
        return len({one.id for one in self.by_job[job] if one.event["type"] != "job.progress"})

    def _has_two_bodies(self, job: str) -> bool:
        bodies: dict[str, set[bytes]] = defaultdict(set)
        for one in self.by_job[job]:
            bodies[one.id].add(one.body)
        return any(len(found) > 1 for found in bodies.values())

    def _is_disordered(self, job: str) -> bool:
        numbers = [int(one.id.rpartition("_")[2]) for one in self.by_job[job]]
        return numbers != sorted(numbers)

    def _lies(self, job: str, known: dict[str, Entry]) -> bool:
        view = known[job].last if job in known else None
        ends = {one.event["type"] for one in self.by_job[job]} - {"job.progress"}
        return view is not None and bool(ends) and ends != {f"job.{view.status}"}

    @staticmethod
    def _named(what: str, jobs: list[str]) -> list[str]:
        return [f"{what}: {len(jobs)}, e.g. {', '.join(jobs[:3])}"] if jobs else []


def forged(requests: list[Received]) -> list[str]:
    """A complaint if the package that receivers use refuses one of them."""
    verifier, wrong = Webhook(owner_secret(KEY, "")), 0
    for request in requests:
        try:
            verifier.verify(request.body, request.headers)
        except WebhookVerificationError:
            # What arrived minutes ago is refused for its age alone.
            wrong += time.time() - request.at < 240.0
    return [f"{wrong} events are not signed as receivers verify them"] if wrong else []


def plan(urls: dict[str, str]) -> Plan:
    return Plan(
        workers=2,
        model={"max_batch_size": 8, "max_crashes": 1_000, "max_attempts": 1_000},
        variables={
            "PENSTOCK_WEBHOOKS__SIGNING_KEYS": KEY,
            "PENSTOCK_WEBHOOKS__URLS": ",".join(urls.values()),
            "PENSTOCK_WEBHOOKS__TIMEOUT_S": str(TIMEOUT_S),
            "PENSTOCK_WEBHOOKS__RETRY_S": "0.2,0.5,1,3600",
            "PENSTOCK_WEBHOOKS__CIRCUIT_S": "0.2,1",
        },
    )


def storm(stack: Stack, kills: int, random: Random) -> None:
    """Kill one of gateway, workers and store at a time, and start it again, as a service manager does."""
    for _ in range(kills):
        time.sleep(random.uniform(0.2, 0.8))
        victims: list[Group | Server] = [stack.gateway, stack.server, *stack.workers]
        victim = random.choice(victims)
        victim.kill()
        time.sleep(random.uniform(0.0, 0.3))
        victim.start()
        if victim is stack.gateway:
            stack.await_gateway()


@fault("F32", "kill -9 of gateway, worker and store while receivers hang, are dead, or answer 500, 429, 410, or break off")
def receivers_misbehave(setting: Setting) -> Verdict:
    kills, random = setting.count(6, 50), setting.random
    found = Receivers(random)
    with found.running():
        stack = Stack(plan(found.urls), setting.folder)
        stack.driver.face = HookFace(stack.gateway_port, found.urls)
        with started(stack):
            flow = Flow(stack.driver, per_second=20.0, make=lambda: order("sleep", seconds=0.05, reports=2))
            with stack.driver.watching(), flow.running():
                storm(stack, kills, random)
            found.heal()
            entries = stack.driver.ledger.accepted()
            stack.driver.await_ends(entries, within_s=60.0)
            complaints = _delivered(found, entries) + still_there(stack)
            requests = found.requests()
            complaints += forged(requests)
            notes = _notes(kills, entries, requests)
            return conclude(stack, "F32", within_s=60.0, most_extra=kills * 8, notes=notes, complaints=complaints)


def _delivered(found: Receivers, entries: list[Entry]) -> list[str]:
    """What is wrong with the deliveries once every event had the time to arrive."""
    wanted = [entry.job for entry in entries if kind_of(entry.key) not in (NONE, "gone")]

    def all_arrived() -> bool:
        ends = Ends(found.requests())
        return all(ends.has_end(job) for job in wanted)

    try:
        eventually(all_arrived, timeout_s=DELIVERED_WITHIN_S)
    except AssertionError:
        return Ends(found.requests()).complaints(entries)
    # An event that comes twice comes once more within a lease.
    threading.Event().wait(2 * (2 * TIMEOUT_S + 1.0))
    return Ends(found.requests()).complaints(entries)


def _notes(kills: int, entries: list[Entry], requests: list[Received]) -> str:
    hooked = sum(kind_of(entry.key) != NONE for entry in entries)
    ids = {request.id for request in requests}
    return f"{kills} kills; {hooked} jobs with a webhook; {len(requests)} requests for {len(ids)} events"
