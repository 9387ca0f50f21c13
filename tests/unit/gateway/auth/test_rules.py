"""What extensions say of their routes stands beside what the engine says of its own, and changes nothing of that."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.gateway.auth.own_routes import OWN
from penstock.gateway.auth.rules import ANY, MANAGE, SUBMIT, RouteRules, joined

GREET = ("GET", "/hello/{name}")


def test_a_route_of_which_nobody_says_anything_takes_the_role_that_manages() -> None:
    rules = joined([OWN, RouteRules({GREET: ANY})])
    assert rules.roles_of(*GREET) == ANY
    assert rules.roles_of("POST", "/hello/{name}") == MANAGE
    assert not rules.is_public("/hello/you")


def test_a_path_is_public_with_whatever_stands_at_its_end() -> None:
    rules = joined([OWN, RouteRules(public={"/hello/{name}"}, probes={"/well"})])
    assert all(rules.is_public(path) for path in ("/hello/you", "/well", "/livez", "/problems/oom"))
    assert not any(rules.is_public(path) for path in ("/hello", "/well/", "/v1/models", "/"))
    assert rules.roles_of(*GREET) == ()


@pytest.mark.parametrize(
    "more",
    [
        RouteRules({("GET", "/v1/keys"): ANY}),
        RouteRules(public={"/v1/keys"}),
        RouteRules(probes={"/v1/jobs/{job_id}"}),
        RouteRules({("GET", "/livez"): SUBMIT}),
        RouteRules(probes={"/livez"}),
    ],
)
def test_an_extension_says_nothing_of_a_route_that_is_not_its_own(more: RouteRules) -> None:
    with pytest.raises(ConfigError, match="say who may call"):
        joined([OWN, more])
