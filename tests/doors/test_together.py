"""What many calls meet together: neighbours in a batch, a deadline that passes, a worker that is killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.doors.check import check
from tests.doors.door import Call, Door, Reply
from tests.doors.doors import DOORS
from tests.doors.stack import KINDS, Site, Stack
from tests.eventually import eventually

DEADLINE_S = 1.2


def open_jobs(site: Site, model: str) -> int:
    return sum(row["status"] in ("queued", "running") for row in site.newest(model, 40))


def sent_by_all(stack: Stack, during: Callable[[], None], **members: Any) -> Mapping[str, Future[Reply]]:
    """The reply of every door; `during` is called while all of them are under way."""
    calls = {door.name: door.prepared(stack.main, door.call(**members)) for door in DOORS.found}

    def answer(door: Door, call: Call) -> Reply:
        reply = door.send(stack.main, call)
        return reply if door.is_refused(reply) else door.finish(stack.main, call, reply)

    with ThreadPoolExecutor(len(calls)) as pool:
        found = {door.name: pool.submit(answer, door, calls[door.name]) for door in DOORS.found}
        during()
    return found


@pytest.fixture(scope="module")
def late(stack: Stack) -> Mapping[str, Future[Reply]]:
    """Calls with a deadline that wait behind others until it has passed."""
    gates = {name: stack.occupied(name) for name in KINDS}
    for gate in gates.values():
        gate.__enter__()

    def during() -> None:
        first = next(name for name in KINDS)
        eventually(lambda: any(row["status"] == "expired" for row in stack.main.newest(first, 40)))
        eventually(lambda: open_jobs(stack.main, first) <= len(DOORS.found) // 2)
        for gate in gates.values():
            gate.__exit__(None, None, None)

    return sent_by_all(stack, during, deadline_s=DEADLINE_S)


@pytest.fixture(scope="module")
def outlived(stack: Stack) -> Mapping[str, Future[Reply]]:
    """Calls whose worker is killed while it runs or has them."""
    gate = stack.gate()

    def during() -> None:
        wanted = sum(door.stores_at_once and door.model == "orders" for door in DOORS.found)
        eventually(lambda: open_jobs(stack.main, "orders") >= wanted)
        gate.await_begun()
        stack.worker.kill()
        stack.worker.start()
        gate.open()

    found = sent_by_all(stack, during, order=gate.order(n=8))
    stack.ready()
    return found


@check("alone")
def test_a_bad_input_fails_alone_in_its_batch(stack: Stack, door: Door) -> None:
    orders: tuple[Mapping[str, Any], ...] = ({"n": 1}, {"code": "my_own"}, {"n": 3})
    calls = [door.prepared(stack.main, door.call(order=order)) for order in orders]

    def answer(call: Call) -> Reply:
        reply = door.send(stack.main, call)
        return reply if door.is_refused(reply) else door.finish(stack.main, call, reply)

    with ThreadPoolExecutor(len(calls)) as pool:
        with stack.occupied(door.model):
            asked = [pool.submit(answer, call) for call in calls]
            if door.stores_at_once:
                eventually(lambda: open_jobs(stack.main, door.model) == 1 + len(calls))
        good, bad, other = (future.result() for future in asked)
    assert (good.n, other.n) == (1.0, 3.0)
    assert (bad.status, bad.code) == door.refusals["failed:my_own"]
    if door.stores_at_once:
        sizes = [row["batch"]["size"] for row in stack.main.newest(door.model, 3)]
        assert sizes == [3, 3, 3]


@check("expired")
def test_a_job_that_is_too_late_ends_and_its_caller_learns_it(door: Door, late: Mapping[str, Future[Reply]]) -> None:
    reply = late[door.name].result()
    assert (reply.status, reply.code) == door.refusals["expired"], reply


@check("killed")
def test_a_killed_worker_costs_no_answer(door: Door, outlived: Mapping[str, Future[Reply]]) -> None:
    assert outlived[door.name].result().n == 8.0
