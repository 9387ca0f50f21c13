"""What operators see of a call: its route's count, its line in the log, its place in the description."""

from __future__ import annotations

from tests.doors.check import check
from tests.doors.door import Door
from tests.doors.stack import Stack
from tests.eventually import eventually


@check("metrics")
def test_a_call_is_counted_by_its_route(stack: Stack, door: Door, patience_s: float) -> None:
    call = door.prepared(stack.main, door.call())
    before = door.counted(stack.main)
    door.send(stack.main, call)
    eventually(lambda: door.counted(stack.main) == before + 1, timeout_s=patience_s)


@check("log")
def test_the_log_tells_of_the_job(stack: Stack, door: Door, patience_s: float) -> None:
    job = door.job_of(stack.main, door.ask(stack.main))
    eventually(lambda: [one for one in stack.main.events("job_accepted") if job["id"] in one.values()], timeout_s=patience_s)


@check("access_log")
def test_the_access_log_has_a_line_for_the_call(stack: Stack, door: Door, patience_s: float) -> None:
    call = door.prepared(stack.main, door.call())
    before = stack.main.accesses('"P')
    door.send(stack.main, call)
    eventually(lambda: stack.main.accesses('"P') == before + 1, timeout_s=patience_s)


@check("described")
def test_the_gateway_describes_the_door(stack: Stack, door: Door) -> None:
    assert door.is_described(stack.main)
