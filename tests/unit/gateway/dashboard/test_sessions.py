"""Sessions and forms: which requests a browser may send on behalf of its user."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from penstock.gateway.asgi.problems import CrossSite
from penstock.gateway.dashboard.router import _own_path, is_page
from penstock.gateway.dashboard.sessions import check_same_site, cookie, session_id

OURS = {"host": "gw.example:8080"}


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin", "origin": "https://gw.example"},
        {"origin": "http://gw.example:8080"},
        {"origin": "https://gw.example:8080"},
    ],
)
def test_a_form_of_our_own_page_passes(headers: dict[str, str]) -> None:
    check_same_site(Headers({**OURS, **headers}))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": "http://gw.example:8080"},
        {"origin": "null"},
        {"origin": "http://gw.example"},
        {"origin": "http://evil.example"},
        {"origin": "http://gw.example:8080.evil.example"},
        {"referer": "http://gw.example:8080/"},
    ],
)
def test_a_form_from_elsewhere_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(CrossSite):
        check_same_site(Headers({**OURS, **headers}))


def test_a_cookie_is_out_of_reach_of_scripts_and_of_other_sites() -> None:
    header = cookie("s" * 43, path="/penstock/", secure=True)
    assert header == f"penstock_session={'s' * 43}; Path=/penstock/; Max-Age=28800; HttpOnly; SameSite=Strict; Secure"
    assert "Secure" not in cookie("s", path="/", secure=False)
    assert "Max-Age=0" in cookie("", path="/", secure=False, max_age_s=0)


@pytest.mark.parametrize(
    ("cookies", "id"),
    [
        (f"a=b; penstock_session={'x' * 43}", "x" * 43),
        ("penstock_session=short", ""),
        (f"penstock_session={'x' * 65}", ""),
        ("", ""),
        ("penstock_session", ""),
        ("\x00=;;;=", ""),
    ],
)
def test_a_session_is_read_from_its_cookie_alone(cookies: str, id: str) -> None:
    assert session_id(cookies) == id


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/ui/",
        "https://evil.example",
        "/\\evil.example",
        "/v1/jobs",
        "/ui/login",
        "ui/jobs",
        "",
        "/ui/\r\nx: y",
        "/ui/ü",
    ],
)
def test_a_sign_in_leads_to_our_own_pages_alone(path: str) -> None:
    assert _own_path(path) == "/"


def test_a_sign_in_leads_back_to_the_requested_page() -> None:
    assert _own_path("/ui/jobs?model=square&status=failed") == "/ui/jobs?model=square&status=failed"


@pytest.mark.parametrize(
    ("path", "page"),
    [("/", True), ("/ui/jobs", True), ("/docs", True), ("/docs/", False), ("/uix", False), ("/v1/jobs", False), ("/ui", False)],
)
def test_a_page_is_known_by_its_path(path: str, page: bool) -> None:
    assert is_page(path) is page
