"""Attacks on the dashboard. The tests read its routes from the application, so that they attack a new page from day one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.access import Role
from penstock.broker.records import NewJob
from penstock.gateway.auth.own_routes import PUBLIC_PAGES
from penstock.gateway.dashboard.render import HEADERS
from penstock.gateway.dashboard.sessions import COOKIE, MAX_FORM_BYTES
from penstock.job import Payload, new_job_id
from penstock.model_spec import ModelInfo, SlotInfo, VersionInfo, WorkerInfo
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.eventually import eventually
from tests.security.keyed import (
    ALICE,
    BOB,
    BOSS,
    EXPIRED,
    PAGES,
    READER,
    RULES,
    SENDER,
    UNKNOWN_ID,
    WITH_PAGES,
    TestKey,
    filled,
    keyed_gateway,
)

OURS = {"sec-fetch-site": "same-origin"}
CLOSED = [(method, path) for method, path in PAGES if path not in PUBLIC_PAGES]
POSTS = [path for method, path in PAGES if method == "POST"]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}"
FORM = {"model": "square", "group": "0" * 16, "total": "1", "seen": ""}


def signed_in(client: httpx2.Client, key: TestKey) -> dict[str, str]:
    answer = client.post("/ui/login", data={"key": f"{key.id}.{key.secret}"}, headers=OURS)
    assert answer.status_code == 303, answer.text
    # The caller keeps the cookie; the client must not, because other tests share the client.
    client.cookies.clear()
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest.fixture(scope="module")
def gateway_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "pages.log"


@pytest.fixture(scope="module")
def gateway(redis_server: str, gateway_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    """In place of the one that this folder's tests share: this one takes up events, which tests of their owners wait for."""
    folder = tmp_path_factory.mktemp("pages")
    with gateway_log.open("wb") as log, keyed_gateway(redis_server, folder, log=log, env=WITH_PAGES) as client:
        yield client


@pytest.fixture(scope="module")
def cookies(gateway: GatewayClient) -> dict[str, dict[str, str]]:
    return {key.id: signed_in(gateway, key) for key in (ALICE, READER, BOB, BOSS)}


@pytest.fixture(scope="module")
def hand(redis_url: str, gateway: GatewayClient) -> Iterator[Hand]:
    hand = Hand(redis_url)
    yield hand
    hand.store.withdraw_worker(hand.name)
    hand.store.close()


def failed_job(hand: Hand, owner: str, *, message: str = "no", content_type: str = "text/html") -> str:
    new = NewJob(new_job_id("square"), "1", Payload(content_type, HOSTILE.encode()), owner=owner)
    hand.store.submit([new])
    for job in hand.claim().jobs:
        hand.fail(job, "handler_error", message)
    return str(new.id)


def test_the_pages_are_these() -> None:
    assert set(CLOSED) <= RULES.roles.keys()
    assert {path for _, path in PAGES} > PUBLIC_PAGES
    assert len(PAGES) == 41


@pytest.mark.parametrize(("method", "path"), [*CLOSED, ("GET", "/ui/nothing"), ("POST", "/ui/nothing"), ("PUT", "/ui/jobs")])
def test_a_stranger_is_shown_the_way_in_whatever_the_page_and_whatever_is_wrong_with_the_session(
    stranger: httpx2.Client, method: str, path: str
) -> None:
    for cookie in ("", f"{COOKIE}={'x' * 43}", f"{COOKIE}=alice.{ALICE.secret}", f"api_key=alice.{ALICE.secret}"):
        answer = stranger.request(method, filled(path), headers={**OURS, "cookie": cookie})
        assert (answer.status_code, answer.content) == (303, b"")
        assert answer.headers["location"].partition("?")[0] == "/ui/login"
        answer = stranger.request(method, filled(path), headers={**OURS, "cookie": cookie, "hx-request": "true"})
        assert (answer.status_code, answer.headers["hx-redirect"], answer.content) == (401, "/ui/login", b"")


def test_the_way_in_tells_nothing_of_what_is_served(stranger: httpx2.Client) -> None:
    answer = stranger.get("/ui/login")
    assert answer.status_code == 200
    assert "square" not in answer.text
    assert "Queues" not in answer.text


@pytest.mark.parametrize("key", [ALICE, READER, BOSS], ids=lambda key: key.id)
@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_a_session_opens_the_pages_of_its_keys_roles_and_no_others(
    gateway: GatewayClient, cookies: dict[str, dict[str, str]], method: str, path: str, key: TestKey
) -> None:
    if path == "/ui/live":
        with gateway.stream(method, path, headers=cookies[key.id]) as stream:
            assert stream.status_code == 200
        return
    body: dict[str, Any] = {"data": FORM} if method == "POST" else {}
    answer = gateway.request(method, filled(path), headers={**OURS, **cookies[key.id]}, **body)
    if set(RULES.roles_of(method, path)).isdisjoint(map(Role, key.roles)):
        assert answer.status_code == 403
        assert "needs the role" in answer.text
    else:
        assert answer.status_code not in (401, 403), answer.text


def test_a_key_in_the_header_opens_a_page_too(gateway: GatewayClient) -> None:
    assert gateway.get("/", headers=READER.header).status_code == 200
    assert gateway.get("/", headers={"authorization": "Bearer alice.wrong"}).status_code == 401


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/queues", "/v1/models", "/openapi.json", "/metrics", "/v1/workers"])
def test_the_api_takes_no_cookie(stranger: httpx2.Client, cookies: dict[str, dict[str, str]], path: str) -> None:
    answer = stranger.get(path, headers={**OURS, **cookies["boss"]})
    assert answer.status_code == 401


WRONG = {
    "none": "",
    "no-secret": "alice",
    "empty-secret": "alice.",
    "wrong-secret": f"alice.{'x' * 43}",
    "unknown": f"nobody.{ALICE.secret}",
    "expired": f"expired.{EXPIRED.secret}",
    "no-text": "\x00é",
}


@pytest.mark.parametrize("key", WRONG.values(), ids=WRONG.keys())
def test_no_wrong_key_signs_in_and_all_get_the_same_answer(stranger: httpx2.Client, key: str) -> None:
    answer = stranger.post("/ui/login", data={"key": key, "next": "/ui/jobs"}, headers=OURS)
    plain = stranger.post("/ui/login", data={"key": "a.b", "next": "/ui/jobs"}, headers=OURS)
    assert (answer.status_code, answer.content) == (401, plain.content)
    assert "set-cookie" not in answer.headers


def test_guessing_at_the_sign_in_is_slowed_down(stranger: httpx2.Client) -> None:
    statuses = [stranger.post("/ui/login", data={"key": f"alice.{n}"}, headers=OURS).status_code for n in range(30)]
    assert statuses[-1] == 429
    assert set(statuses) == {401, 429}


def test_a_key_that_may_not_look_does_not_sign_in(stranger: httpx2.Client) -> None:
    answer = stranger.post("/ui/login", data={"key": f"sender.{SENDER.secret}"}, headers=OURS)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_session_is_a_random_name_out_of_reach_of_scripts_and_ends_with_the_sign_out(
    gateway: GatewayClient, gateway_log: Path
) -> None:
    answer = gateway.post("/ui/login", data={"key": f"reader.{READER.secret}", "next": "/ui/jobs?model=square"}, headers=OURS)
    assert answer.headers["location"] == "/ui/jobs?model=square"
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert attributes == ["Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Strict"]
    assert READER.secret not in answer.headers["set-cookie"]
    secure = gateway.post(
        "/ui/login", data={"key": f"reader.{READER.secret}"}, headers={**OURS, "origin": "https://gw.example"}
    )
    assert secure.headers["set-cookie"].endswith("; Secure")
    gateway.cookies.clear()
    session = {"cookie": cookie}
    assert gateway.get("/", headers=session).status_code == 200
    out = gateway.post("/ui/logout", headers={**OURS, **session})
    assert (out.headers["location"], "Max-Age=0" in out.headers["set-cookie"]) == ("/ui/login", True)
    assert gateway.get("/", headers=session).status_code == 303
    assert cookie.partition("=")[2] not in gateway_log.read_text()


def test_a_session_holds_at_every_gateway_of_the_store_that_has_its_key_and_ends_with_the_key(
    gateway: GatewayClient, redis_url: str, tmp_path: Path, cookies: dict[str, dict[str, str]]
) -> None:
    replaced = TestKey(BOB.id, BOB.roles, BOB.owner, BOB.more, secret="n" * 43)
    with keyed_gateway(redis_url, tmp_path, keys=(ALICE, replaced)) as other:
        statuses = {key: other.get("/ui/jobs", headers=cookies[key]).status_code for key in ("alice", "bob", "boss")}
    assert statuses == {"alice": 200, "bob": 303, "boss": 303}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "hx-request": "true"},
    ],
    ids=["bare", "cross-site", "same-site", "origin", "null", "htmx"],
)
def test_no_other_site_can_send_a_form_in_its_visitors_name(
    gateway: GatewayClient, hand: Hand, cookies: dict[str, dict[str, str]], path: str, sent: dict[str, str]
) -> None:
    job = failed_job(hand, "team-a")
    data = {**FORM, "key": f"alice.{ALICE.secret}"}
    answer = gateway.post(filled(path, job_id=job), data=data, headers={**cookies["boss"], **sent})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert "replayed_as" not in gateway.get(f"/v1/jobs/{job}", headers=BOSS.header).json()
    assert gateway.get("/", headers=cookies["boss"]).status_code == 200


def test_a_form_is_small_and_a_form(gateway: GatewayClient, cookies: dict[str, dict[str, str]]) -> None:
    headers = {**OURS, **cookies["boss"]}
    assert gateway.post("/ui/failed/replay", json=FORM, headers=headers).status_code == 415
    assert gateway.post("/ui/failed/replay", data={**FORM, "x": "y" * MAX_FORM_BYTES}, headers=headers).status_code == 413
    assert gateway.post("/ui/failed/replay", data={f"f{n}": "" for n in range(40)}, headers=headers).status_code == 400
    assert gateway.post("/ui/failed/replay", data={"model": "square"}, headers=headers).status_code == 400
    assert gateway.post("/ui/failed/replay", data={**FORM, "before": "{}"}, headers=headers).status_code in (200, 400)


@pytest.mark.parametrize(("method", "path"), [*PAGES, ("GET", "/ui/nothing")])
def test_every_page_carries_the_headers_that_keep_browsers_careful(
    gateway: GatewayClient, cookies: dict[str, dict[str, str]], method: str, path: str
) -> None:
    session = signed_in(gateway, BOSS) if path == "/ui/logout" else cookies["boss"]
    for headers in ({**OURS, **session}, OURS, {}):
        with gateway.stream(method, filled(path), headers=headers) as answer:
            received = dict(answer.headers)
        assert received["x-content-type-options"] == "nosniff"
        if path != "/ui/static/{name}":
            wanted = {name for name in HEADERS.items() if name[0] not in ("content-security-policy", "cache-control")}
            assert wanted <= set(received.items())
            assert received["content-security-policy"] in (HEADERS["content-security-policy"], "sandbox")
            assert "no-store" in received["cache-control"]


OWNED = [(method, path) for method, path in CLOSED if "{job_id}" in path]


@pytest.mark.parametrize(("method", "path"), OWNED)
def test_another_owners_job_has_no_page(
    gateway: GatewayClient, hand: Hand, cookies: dict[str, dict[str, str]], method: str, path: str
) -> None:
    theirs = failed_job(hand, "team-a")
    body: dict[str, Any] = {"data": FORM} if method == "POST" else {}
    headers = {**OURS, **cookies["bob"]}
    answer, absent = (gateway.request(method, filled(path, job_id=id), headers=headers, **body) for id in (theirs, UNKNOWN_ID))
    assert answer.status_code == absent.status_code == 404
    assert answer.text.replace(theirs, UNKNOWN_ID) == absent.text
    assert "replayed_as" not in gateway.get(f"/v1/jobs/{theirs}", headers=BOSS.header).json()


def test_lists_and_the_inbox_show_ones_own_jobs_alone_and_a_replay_of_all_takes_no_others(
    gateway: GatewayClient, hand: Hand, cookies: dict[str, dict[str, str]]
) -> None:
    mine, theirs = failed_job(hand, "team-b", message="shared fault"), failed_job(hand, "team-a", message="shared fault")
    for page in ("/ui/jobs", "/ui/failed"):
        assert theirs not in gateway.get(page, headers=cookies["bob"]).text
        assert theirs in gateway.get(page, headers=cookies["boss"]).text or page == "/ui/failed"
    page = gateway.get("/ui/failed", headers=cookies["bob"]).text
    [group] = set(re.findall(r'id="group-([0-9a-f]{16})"', page))
    gateway.post("/ui/failed/replay", data={**FORM, "group": group}, headers={**OURS, **cookies["bob"]})
    shown = {id: gateway.get(f"/v1/jobs/{id}", headers=BOSS.header).json() for id in (mine, theirs)}
    assert ("replayed_as" in shown[mine], "replayed_as" in shown[theirs]) == (True, False)


def live_table(gateway: GatewayClient, key: dict[str, str]) -> str:
    """The table of queues that the dashboard's stream of events sends first."""
    with gateway.stream("GET", "/ui/live", headers=key) as stream:
        return "".join(takewhile(lambda line: "</table>" not in line, stream.iter_lines()))


async def test_whatever_models_workers_and_jobs_are_called_or_say_is_shown_as_text(
    gateway: GatewayClient, hand: Hand, cookies: dict[str, dict[str, str]]
) -> None:
    job = failed_job(hand, "team-a", message=HOSTILE)
    page = failed_job(hand, "team-a", message=HOSTILE, content_type=f"text/{HOSTILE}")
    info = VersionInfo(input_schema={"title": HOSTILE}, accepts=(HOSTILE,), description=HOSTILE)
    name = HOSTILE.replace("/", "|")
    hand.store.announce_model(ModelInfo(name, name, versions={name: info}))
    slot = SlotInfo("square", HOSTILE, HOSTILE, device=HOSTILE, provider=HOSTILE, error=HOSTILE, warm_note=HOSTILE)
    hand.store.announce_worker(WorkerInfo(f"{hand.name}-{HOSTILE}", HOSTILE, 1, 0.0, (slot,)))
    boss = cookies["boss"]
    try:
        # Models that other tests left in the shared store may appear on the page before the hostile model does.
        await asyncio.to_thread(eventually, lambda: "alert(1)" in gateway.get("/", headers=boss).text)
        pages = ["/", "/ui/workers", "/ui/failed", "/ui/jobs", f"/ui/jobs/{job}", f"/ui/jobs/{page}", "/ui/models/square"]
        hostile = httpx2.URL(gateway.base_url).copy_with(path=f"/ui/models/{name}").raw_path.decode()
        texts = {path: gateway.get(path, headers=boss).text for path in [*pages, hostile, f"/ui/jobs?model={HOSTILE}"]}
        # The stream begins with what its poller saw last, which may be older than the page.
        await asyncio.to_thread(eventually, lambda: "alert(1)" in live_table(gateway, boss))
        texts["live"] = live_table(gateway, boss)
    finally:
        hand.store.withdraw_worker(f"{hand.name}-{HOSTILE}")
        hand.store._redis.hdel("ps:{registry}:models", name)
    shown = {path for path, text in texts.items() if "alert(1)" in text}
    assert {"/", "live", "/ui/workers", "/ui/failed", f"/ui/jobs/{job}", hostile} <= shown
    for path, text in texts.items():
        assert not re.search("<script>|<img src=x", text), path


def test_a_payload_is_kept_and_not_shown(gateway: GatewayClient, hand: Hand, cookies: dict[str, dict[str, str]]) -> None:
    job = failed_job(hand, "team-a")
    answer = gateway.get(f"/ui/jobs/{job}/input", headers=cookies["boss"])
    assert answer.text == HOSTILE
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{job}.input"'
    assert (answer.headers["content-security-policy"], answer.headers["x-content-type-options"]) == ("sandbox", "nosniff")


def test_a_visitor_from_another_site_gets_to_the_page_with_a_step_of_our_own(gateway: GatewayClient) -> None:
    answer = gateway.get("/ui/jobs?model=square", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0; url=/ui/jobs?model=square">' in answer.text
    assert gateway.get("/ui/jobs", headers={"sec-fetch-site": "none"}).headers["location"] == "/ui/login?next=%2Fui%2Fjobs"
