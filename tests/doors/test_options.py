"""What a call says beside its input: deadline, key, trace, webhook, priority; and what the model's split makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any

from tests.doors.check import assert_refused, check
from tests.doors.door import Call, Door, Reply
from tests.doors.stack import STRANGE, Site, Stack
from tests.eventually import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
Split = Callable[[Mapping[str, float]], None]
_names = iter(range(1_000_000))


def named(door: Door) -> str:
    return f"{door.name}-{next(_names)}"


def sent_twice(site: Site, door: Door, first: Call, second: Call) -> tuple[list[Reply], set[str]]:
    """Both replies, and the jobs that they made."""
    before = {row["id"] for row in site.newest(door.model, 20)}
    replies = []
    for call in (first, second):
        reply = door.send(site, call)
        replies.append(reply if door.is_refused(reply) else door.finish(site, call, reply))
    return replies, {row["id"] for row in site.newest(door.model, 20)} - before


def in_state(site: Site, model: str, state: str) -> Any:
    found = site.newest(model)
    return found if found["status"] == state else None


@check("deadline")
def test_a_deadline_can_be_set(stack: Stack, door: Door) -> None:
    job = door.job_of(stack.main, door.ask(stack.main, deadline_s=17.0))
    made, due = (datetime.fromisoformat(job[name]) for name in ("created_at", "deadline_at"))
    assert 15.0 <= (due - made).total_seconds() <= 17.5


@check("hang_up")
def test_a_caller_that_leaves_cancels_its_job(stack: Stack, door: Door, patience_s: float) -> None:
    gate = stack.gate()
    call = door.prepared(stack.main, door.call(order=gate.order()))
    with gate.held():
        with door.held(stack.main, call):
            gate.await_begun()
        eventually(partial(in_state, stack.main, door.model, "cancelled"), timeout_s=patience_s)


@check("cancel")
def test_a_job_can_be_cancelled(stack: Stack, door: Door) -> None:
    gate = stack.gate()
    call = door.prepared(stack.main, door.call(order=gate.order(), idempotency=named(door)))
    with ThreadPoolExecutor(1) as pool, gate.held():
        pool.submit(door.send, stack.main, call)
        gate.await_begun()
        job = stack.main.newest(door.model)["id"]
        door.cancel(stack.main, call, job)
        assert stack.main.ended(job)["status"] == "cancelled"


@check("idempotency")
def test_a_repeat_with_the_same_key_is_the_same_job(stack: Stack, door: Door) -> None:
    call = door.prepared(stack.main, door.call(order={"n": 3}, idempotency=named(door)))
    replies, jobs = sent_twice(stack.main, door, call, call)
    assert [reply.n for reply in replies] == [3.0, 3.0]
    assert len(jobs) == 1


@check("key_reused")
def test_the_key_of_another_request_is_refused(stack: Stack, door: Door) -> None:
    key = named(door)
    calls = [door.prepared(stack.main, door.call(order={"n": n}, idempotency=key)) for n in (1, 2)]
    replies, _ = sent_twice(stack.main, door, *calls)
    assert replies[0].n == 1.0
    assert_refused(door, replies[1], "key_reused")


@check("trace")
def test_the_trace_reaches_the_job(stack: Stack, door: Door) -> None:
    reply = door.ask(stack.main, trace=f"00-{TRACE}-b7ad6b7169203331-01")
    assert door.job_of(stack.main, reply).get("trace_id") == TRACE


@check("trace_back")
def test_the_trace_comes_back(stack: Stack, door: Door) -> None:
    reply = door.ask(stack.main, trace=f"00-{TRACE}-b7ad6b7169203331-01")
    assert TRACE in reply.headers.get("traceparent", "")


@check("webhook")
def test_a_webhook_hears_of_the_end(stack: Stack, door: Door, patience_s: float) -> None:
    name = named(door)
    call = door.prepared(stack.main, door.call(webhook=f"{stack.hooks.url}{name}"))
    job = door.job_of(stack.main, door.finish(stack.main, call, door.send(stack.main, call)))
    [event, *_] = eventually(lambda: stack.hooks.of(f"/{name}"), timeout_s=patience_s)
    assert door.id_of(call, job["id"]) in event.body.decode()


@check("priority")
def test_a_priority_can_be_set(stack: Stack, door: Door) -> None:
    assert door.job_of(stack.main, door.ask(stack.main, priority="bulk"))["priority"] == "bulk"


@check("split")
def test_the_split_of_the_model_is_followed(stack: Stack, door: Door, split: Split) -> None:
    call = door.prepared(stack.main, door.call(order={"ask": "version"}))
    split({"2": 100})
    assert door.finish(stack.main, call, door.send(stack.main, call)).n == 2.0


@check("split_repeat")
def test_a_repeat_gets_the_version_of_its_first_job(stack: Stack, door: Door, split: Split) -> None:
    """The split has given all calls to another version meanwhile, whose schema the input does not fit."""
    split({"2": 100})
    call = door.prepared(stack.main, door.call(order={"ask": "version"}, idempotency=named(door)))
    first = door.send(stack.main, call)
    assert not door.is_refused(first), first
    split({STRANGE: 100})
    again = door.send(stack.main, call)
    assert not door.is_refused(again), again
    replies = [door.finish(stack.main, call, one) for one in (first, again)]
    assert [one.n for one in replies] == [2.0, 2.0]
