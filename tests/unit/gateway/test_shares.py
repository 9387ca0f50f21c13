"""What one owner, one address or one key may have of a gateway process."""

from __future__ import annotations

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
    memory = BodyMemory(100)
    memory.take(50, "greedy")
    with pytest.raises(CapacityError):
        memory.take(1, "greedy")
    memory.take(50, "modest")
    memory.give_back(50, "greedy")
    memory.take(10, "greedy")


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
