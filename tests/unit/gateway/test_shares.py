"""What one owner, one address or one key may have of a gateway process."""

from __future__ import annotations

import asyncio
import resource

import pytest

from penstock.access import Role
from penstock.errors import CapacityError, RateLimited
from penstock.gateway.asgi.door import Door
from penstock.gateway.asgi.problems import GatewayBusy
from penstock.gateway.asgi.server import OTHER_FILES, affordable_connections
from penstock.gateway.asgi.wire import BodyMemory
from penstock.gateway.auth.keys import EVERYBODY, NOBODY, POLL_COST, Caller, Shares, cost_of
from penstock.gateway.auth.rate_limit import Bucket
from penstock.gateway.auth.roles import WaitingResponses

GREEDY = Caller("greedy", frozenset(Role), "key-1")
GREEDY_TOO = Caller("greedy", frozenset(Role), "key-2")
MODEST = Caller("modest", frozenset(Role), "key-3")


def test_an_owner_has_a_quarter_of_the_places_with_all_its_keys_together() -> None:
    places = Shares("predictions", 8, setting="gateway.max_predictions")
    for caller in (GREEDY, GREEDY_TOO):
        places.take(caller)
    for caller in (GREEDY, GREEDY_TOO):
        with pytest.raises(RateLimited, match="2 predictions open in this gateway process, its share of 8"):
            places.take(caller)
    places.take(MODEST)
    places.give_back(GREEDY_TOO)
    places.take(GREEDY)


def test_when_all_places_are_taken_everybody_is_refused() -> None:
    places = Shares("requests", 4)
    for number in range(4):
        places.take(Caller(f"owner-{number}", frozenset(Role), f"key-{number}"))
    with pytest.raises(GatewayBusy):
        places.take(MODEST)


def test_without_keys_everybody_is_one_and_may_have_all() -> None:
    places = Shares("requests", 4)
    for _ in range(4):
        places.take(EVERYBODY)
    with pytest.raises(GatewayBusy):
        places.take(EVERYBODY)


def test_strangers_have_a_share_too() -> None:
    places = Shares("requests", 4)
    places.take(NOBODY)
    with pytest.raises(RateLimited):
        places.take(NOBODY)


def test_what_waits_takes_no_place_of_what_works() -> None:
    requests = Shares("requests", 4)
    waiting = WaitingResponses(8, requests=requests)
    requests.take(GREEDY)
    with waiting.open(GREEDY):
        assert requests.taken == 0
        requests.take(GREEDY)
        with waiting.open(GREEDY):
            assert not waiting.is_free(GREEDY)
            assert waiting.is_free(MODEST)
            with pytest.raises(RateLimited), waiting.open(GREEDY):
                pass
    assert requests.taken == 2
    assert waiting.is_free(GREEDY)


def test_an_owners_uploads_take_half_of_the_memory_at_most() -> None:
    memory, greedy, modest = BodyMemory(100), {"caller": GREEDY}, {"caller": MODEST}
    memory.take(20, greedy)
    memory.take(30, greedy)
    with pytest.raises(CapacityError):
        memory.take(1, {"caller": GREEDY_TOO})
    memory.take(50, modest)
    memory.give_back(greedy)
    memory.take(50, {"caller": GREEDY_TOO})


async def test_who_waits_for_memory_gets_it_once_another_request_is_over() -> None:
    memory, first, second = BodyMemory(100), {"caller": EVERYBODY}, {"caller": EVERYBODY}
    memory.take(60, first)
    waiting = asyncio.create_task(memory.take_in_turn(60, second, within_s=60.0))
    with pytest.raises(GatewayBusy, match="no room for 60 bytes"):
        await memory.take_in_turn(60, {"caller": EVERYBODY}, within_s=0.001)
    assert not waiting.done()
    memory.give_back(first)
    await waiting
    memory.give_back(first)
    with pytest.raises(GatewayBusy):
        memory.take(41, {"caller": EVERYBODY})


async def test_messages_of_a_greedy_owner_wait_in_turn_beside_those_of_a_modest_one() -> None:
    """gRPC keeps each message whole in memory, so that so many are read at a time: here four, of one owner two."""
    places, scopes = BodyMemory(4), [{"caller": caller} for caller in (GREEDY, MODEST) for _ in range(4)]
    tasks = [asyncio.create_task(places.take_in_turn(1, scope)) for scope in scopes]

    async def after(given_back: int) -> str:
        places.give_back(scopes[given_back])
        for _ in range(3):
            await asyncio.sleep(0)
        return "".join(str(int(task.done())) for task in tasks)

    assert await after(7) == "11001100"
    # The greedy owner waits longer, and has its half already.
    assert await after(4) == "11001110"
    tasks[2].cancel()
    assert await after(0) == "11111110"
    places.give_back(scopes[1])
    places.give_back(scopes[5])
    await tasks[7]


def test_a_poll_costs_a_tenth_of_a_request() -> None:
    bucket = Bucket(rate_per_s=1.0, burst=1.0)
    assert [bucket.take(0.0, POLL_COST) for _ in range(9)] == [0.0] * 9
    assert bucket.take(0.0) == pytest.approx(0.9)
    assert bucket.take(0.0, POLL_COST) == 0.0


def test_only_a_look_at_one_job_is_cheap() -> None:
    """Regression: the events of a hundred jobs cost a tenth of a request too, a thousandth of a request per job."""
    assert [cost_of("GET", f"/v1/jobs/j{part}") for part in ("", "/result", "/events")] == [POLL_COST] * 3
    dear = [("GET", "/v1/jobs/events"), ("GET", "/v1/jobs"), ("DELETE", "/v1/jobs/j"), ("POST", "/v1/jobs/j/replay")]
    assert [cost_of(*request) for request in dear] == [1.0] * 4


def test_an_address_has_its_share_of_connections_and_a_proxy_has_none() -> None:
    door = Door(most=5, per_address=2, exempt=["10.0.0.0/8"])
    assert [door.enter("192.0.2.1") for _ in range(2)] == ["", ""]
    assert "This address" in door.enter("192.0.2.1")
    door.leave("192.0.2.1")
    assert door.enter("10.1.2.3") == ""
    assert door.enter("10.1.2.3") == ""
    assert door.enter("10.1.2.3") == ""
    assert "The gateway" in door.enter("192.0.2.2")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", ""])
def test_callers_on_this_machine_are_not_counted_by_address(address: str) -> None:
    door = Door(most=9, per_address=1)
    assert [door.enter(address) for _ in range(9)] == [""] * 9


def test_a_process_that_may_have_few_files_takes_fewer_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
        assert affordable_connections(10) == 10
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard, "the soft limit is only what nobody raised"
        if hard != resource.RLIM_INFINITY:
            assert affordable_connections(hard) == hard - OTHER_FILES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
