"""Roles: each test key calls every operation of the OpenAPI document."""

from __future__ import annotations

import httpx2
import pytest

from penstock.access import Role
from penstock.gateway.auth.own_routes import PUBLIC_PAGES
from tests.security.keyed import (
    ALICE,
    BOB,
    BOSS,
    EXPIRED,
    OPERATIONS,
    READER,
    REQUEST_ID,
    ROUTES,
    RULES,
    SENDER,
    SUBMITS,
    TestKey,
    documented_roles,
    filled,
    routes,
    send,
)

# The allow-list, written by hand: the only paths that need no key. None of them shows models, jobs or workers.
OPEN = {"/livez", "/readyz", "/startupz", "/ping", "/v2/health/live", "/v2/health/ready", "/problems/{code}"}
CLOSED = [(method, path) for method, path in OPERATIONS if path not in OPEN]
STRANGERS = {
    "none": {},
    "wrong-secret": {"authorization": f"Bearer alice.{'x' * 43}"},
    "another-keys-secret": {"authorization": f"Bearer alice.{BOSS.secret}"},
    "unknown-id": {"authorization": f"Bearer nobody.{ALICE.secret}"},
    "expired": EXPIRED.header,
    "other-scheme": {"authorization": f"Basic alice.{ALICE.secret}"},
    "no-scheme": {"authorization": f"alice.{ALICE.secret}"},
    "no-secret": {"authorization": "Bearer alice."},
    "hash-for-secret": {"authorization": f"Bearer {ALICE.toml.split('sha256 = ')[1][1:65]}"},
    "no-ascii": {"authorization": "Bearer älice.\u00ff"},
    "cookie": {"cookie": f"api_key=alice.{ALICE.secret}"},
    "other-header": {"x-api-key": f"alice.{ALICE.secret}"},
}


def visible_parts(answer: httpx2.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    return answer.status_code, answer.content, sorted(item for item in answer.headers.items() if item[0] != "date")


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_whatever_is_wrong_with_a_key_the_answer_is_the_same_401(stranger: httpx2.Client, method: str, path: str) -> None:
    answers = {name: visible_parts(send(stranger, method, path, headers=headers)) for name, headers in STRANGERS.items()}
    status, body, headers = answers["none"]
    assert status == 401
    assert ("www-authenticate", 'Bearer realm="penstock"') in headers
    assert {name for name, answer in answers.items() if answer != answers["none"]} == set()
    assert REQUEST_ID.encode() in body


@pytest.mark.parametrize("name", ["api_key", "key", "access_token", "token", "authorization"])
def test_a_key_in_the_query_string_is_never_taken(stranger: httpx2.Client, name: str) -> None:
    answer = stranger.get("/v1/models", params={name: f"alice.{ALICE.secret}"})
    assert answer.status_code == 401
    assert ALICE.secret not in answer.text


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/metrics/x", "/openapi.json", "/docs/", "/v1/models/nobody", "/livez/"])
def test_a_stranger_learns_neither_which_paths_nor_which_models_there_are(stranger: httpx2.Client, path: str) -> None:
    assert {method: stranger.request(method, path).status_code for method in ("GET", "POST", "PUT")} == dict.fromkeys(
        ("GET", "POST", "PUT"), 401
    )


@pytest.mark.parametrize("path", sorted(OPEN))
def test_an_open_path_needs_no_key_and_tells_nothing_of_what_is_served(stranger: httpx2.Client, path: str) -> None:
    answer = stranger.get(filled(path))
    assert answer.status_code in (200, 500, 503)
    assert "square" not in answer.text


def test_the_reasons_for_not_being_ready_are_told_to_those_with_a_key(gateway: httpx2.Client) -> None:
    details = {"errors", "models"}
    assert details & gateway.get("/readyz", headers=READER.header).json().keys()
    assert not details & gateway.get("/readyz").json().keys()


@pytest.mark.parametrize("key", [ALICE, SENDER, READER, BOB, BOSS], ids=lambda key: key.id)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_key_opens_the_routes_of_its_roles_and_no_others(
    gateway: httpx2.Client, method: str, path: str, key: TestKey
) -> None:
    answer = send(gateway, method, path, key=key)
    roles = documented_roles(method, path)
    if roles and roles.isdisjoint(key.roles):
        assert (answer.status_code, answer.json()["code"]) == (403, "wrong_role")
    else:
        assert answer.status_code not in (401, 403), answer.text


# The next test does not use the roles of the document, in case the document declares wrong roles.


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_a_reading_key_changes_nothing_and_a_sending_key_sees_nothing(gateway: httpx2.Client, method: str, path: str) -> None:
    if method != "GET":
        assert send(gateway, method, path, key=READER).status_code == 403
    elif path.startswith("/v1/jobs"):
        assert send(gateway, method, path, key=SENDER).status_code == 403


@pytest.mark.parametrize("path", SUBMITS)
def test_the_key_that_manages_does_not_submit(gateway: httpx2.Client, path: str) -> None:
    assert send(gateway, "POST", path, key=BOSS).status_code == 403


@pytest.mark.parametrize("path", ["/v1/workers", "/metrics"])
def test_what_shows_the_machine_takes_the_key_that_manages(gateway: httpx2.Client, path: str) -> None:
    assert gateway.get(path, headers=ALICE.header).status_code == 403
    assert gateway.get(path, headers=BOSS.header).status_code == 200


def test_every_route_has_its_line_in_the_table_of_roles() -> None:
    public = RULES.probes | RULES.public
    assert set(OPERATIONS) <= RULES.roles.keys() | {("GET", path) for path in public}
    assert public - PUBLIC_PAGES == OPEN


def test_a_route_that_somebody_forgot_to_list_takes_the_key_that_manages() -> None:
    assert RULES.roles_of("GET", "/v1/new-today") == (Role.MANAGE,)


def test_the_document_of_a_gateway_without_keys_tells_of_none() -> None:
    assert not any("security" in operation for item in routes(keyed=False).values() for operation in item.values())
    assert all("security" in operation for item in ROUTES.values() for operation in item.values())
