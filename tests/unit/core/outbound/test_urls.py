"""Which URLs the settings of a model allow, and which addresses are public."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.outbound.urls import ANYWHERE, is_listed, is_public, parse_url, rule_fault

RULES = ("https://files.example/pictures/", "http://10.0.0.7:9000/", "https://[fd00::1]/")


@pytest.mark.parametrize(
    ("text", "shown", "target"),
    [
        ("https://Files.Example/a/b.png?key=1#x", "https://files.example/a/b.png", "/a/b.png?key=1"),
        ("HTTP://files.example:8080", "http://files.example:8080/", "/"),
        ("https://files.example:443/a", "https://files.example/a", "/a"),
        ("https://[FD00::1]:8443/a", "https://[fd00::1]:8443/a", "/a"),
    ],
)
def test_a_url_is_taken_apart_and_shown_without_its_query(text: str, shown: str, target: str) -> None:
    url = parse_url(text)
    assert (str(url), url.target) == (shown, target)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://files.example/a",
        "file:///etc/passwd",
        "https:///a",
        "https://user:secret@files.example/a",
        "https://user@files.example/a",
        "https://files.example\\@10.0.0.1/a",
        "https://files.example/a b",
        "https://files.example:0/a",
        "https://files.example:99999/a",
        "https://files.example:x/a",
        "https://files_example/a",
        "https://fíles.example/a",
        "https://[::1/a",
        "https://files.example/a/../b",
        "https://files.example/a/%2E%2e/b",
        "https://files.example/.git/config",
        "https://files.example/\r\nhost: other",
        "https://files.example/" + "a" * 2_048,
    ],
)
def test_what_readers_could_take_apart_differently_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_url(text)


@pytest.mark.parametrize("text", ["https://files.example/pictures/a.png", "http://10.0.0.7:9000/x", "https://[fd00::1]/x"])
def test_a_listed_host_is_the_operators_own_choice(text: str) -> None:
    assert is_listed(parse_url(text), RULES, refusal="{url} is not allowed")
    assert is_listed(parse_url(text), (*RULES, ANYWHERE), refusal="{url} is not allowed")


@pytest.mark.parametrize(
    "text",
    [
        "https://files.example/picturesque",
        "https://files.example/other/a.png",
        "http://files.example/pictures/a.png",
        "https://files.example:8443/pictures/a.png",
        "https://files.example.evil.example/pictures/a.png",
        "http://10.0.0.7/x",
    ],
)
def test_any_other_url_is_refused_and_the_refusal_names_it(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"\S+ is not allowed"):
        is_listed(parse_url(text), RULES, refusal="{url} is not allowed")


def test_anywhere_means_https_on_its_usual_port() -> None:
    assert not is_listed(parse_url("https://other.example/a"), (ANYWHERE,), refusal="{url} is not allowed")
    for text in ("http://other.example/a", "https://other.example:8443/a"):
        with pytest.raises(InvalidInput, match="only https on its usual port"):
            is_listed(parse_url(text), (ANYWHERE,), refusal="{url} is not allowed")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
        *("255.255.255.255", "240.0.0.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:7f00:1::"),
        *("192.0.0.8", "192.88.99.1", "168.63.129.16", "::ffff:168.63.129.16"),
    ],
)
def test_addresses_inside_and_those_that_stand_for_others_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("rule", ["*", *RULES])
def test_rules_are_hosts_with_a_folder_or_anywhere(rule: str) -> None:
    assert rule_fault(rule) == ""


@pytest.mark.parametrize(
    "rule", ["", "files.example", "https://files.example", "https://files.example/a.png", "https://h/a/?x=/"]
)
def test_other_rules_are_refused_with_the_reason(rule: str) -> None:
    fault = rule_fault(rule)
    # A host alone is its whole tree.
    assert (fault == "") == (rule == "https://files.example")


@given(st.text(max_size=40))
def test_a_url_is_read_or_refused_and_nothing_else(text: str) -> None:
    for given_text in (text, f"https://{text}", f"https://files.example/{text}"):
        try:
            url = parse_url(given_text)
        except InvalidInput:
            continue
        assert url.scheme in ("https", "http")
        assert url.host
        assert url.target.startswith("/")
