"""Who may call: keys, roles, owners, rates."""

from __future__ import annotations

from tests.doors.check import assert_comes_back, assert_refused, check
from tests.doors.door import Door
from tests.doors.stack import Stack


@check("keys")
def test_a_call_without_a_valid_key_is_refused(stack: Stack, door: Door) -> None:
    # Each door may try once: more guesses from one address are refused as such.
    assert_refused(door, door.ask(stack.main, key=None), "unauthorized")


@check("roles")
def test_a_key_without_the_role_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, key="reader"), "wrong_role")


@check("owners")
def test_a_job_belongs_to_the_owner_of_its_key(stack: Stack, door: Door) -> None:
    made = door.job_of(stack.main, door.ask(stack.main, key="plain"))
    assert stack.main.get(f"/v1/jobs/{made['id']}", "plain").status_code == 200
    assert stack.main.get(f"/v1/jobs/{made['id']}", "reader").status_code == 404


@check("rate")
def test_the_rate_of_a_key_is_kept(stack: Stack, door: Door) -> None:
    replies = [door.ask(stack.main, key="slow") for _ in range(2)]
    assert_refused(door, replies[-1], "rate_limited")
    assert_comes_back(replies[-1])


@check("cross_site")
def test_a_browser_on_a_page_of_another_site_is_refused(stack: Stack, door: Door) -> None:
    sent = {"sec-fetch-site": "cross-site", "origin": "https://elsewhere.example.com"}
    assert_refused(door, door.ask(stack.main, headers=sent), "cross_site")
