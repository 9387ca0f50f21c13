"""The POST to a receiver: which addresses it goes to, and what a receiver can do to a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.extensions.webhooks.gateway.attempts import NOT_ALLOWED, ReceiverReply
from penstock.extensions.webhooks.gateway.posting import LookUp, Poster
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.outbound.pinned import Resolve
from tests.certificates import Authority
from tests.webhook_receiver import Receiver, Say, receiver

look_ups = list[LookUp]()
HEADERS = {"webhook-id": "msg_1", "content-type": "application/json"}


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def post(url: str, *rules: str, resolve: Resolve | None = None, timeout_s: float = 5.0) -> ReceiverReply:
    webhooks = WebhooksSettings(signing_keys=(new_signing_key(),), urls=rules or ("*",), timeout_s=timeout_s)
    poster = Poster(webhooks) if resolve is None else Poster(webhooks, resolve=resolve)
    return asyncio.run(poster.post(url, HEADERS, b'{"a":1}', look_ups.append))


def test_a_listed_receiver_gets_the_event(hooks: Receiver) -> None:
    assert post(f"{hooks.url}a?key=1", hooks.url) == ReceiverReply(204)
    [got] = hooks.requests
    assert (got.path, got.body, got.headers["webhook-id"]) == ("/a?key=1", b'{"a":1}', "msg_1")
    assert got.headers["host"] == hooks.url.removeprefix("http://").rstrip("/")


INSIDE = [
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.8",
    "168.63.129.16",
    "224.0.0.1",
    "::1",
    "::",
    "fe80::1%eth0",
    "fd00::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "ff02::1",
]


@pytest.mark.parametrize("address", INSIDE)
def test_a_name_that_leads_inside_is_not_called(address: str) -> None:
    """The receiver's name is public and its address is not: DNS rebinding, and addresses that stand for others."""
    assert post("https://hooks.example/a", resolve=lambda host, port: [address]) == ReceiverReply(failure="no_public_address")
    mixed = post("https://hooks.example/a", resolve=lambda host, port: ["93.184.215.14", address])
    assert mixed == ReceiverReply(failure="no_public_address")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "017700000001", "[::ffff:127.0.0.1]", "localhost"])
def test_no_way_of_writing_this_machine_leads_here(hooks: Receiver, host: str) -> None:
    port = hooks.url.rpartition(":")[2].rstrip("/")
    assert post(f"http://{host}:{port}/a").outcome != ReceiverReply(204).outcome
    assert post(f"https://{host}/a").failure in ("no_public_address", NOT_ALLOWED)
    assert not hooks.requests


def test_the_name_is_looked_up_once_for_each_attempt_and_not_by_anyone_else(hooks: Receiver) -> None:
    """A name server that answers otherwise the second time changes nothing: what was checked is what is called."""
    answers = iter([["127.0.0.1"], ["10.255.255.1"]])
    port = hooks.url.rpartition(":")[2].rstrip("/")
    rule = f"http://hooks.example:{port}/"
    assert post(f"{rule}a", rule, resolve=lambda host, port: next(answers)) == ReceiverReply(204)
    assert hooks.requests[0].headers["host"] == f"hooks.example:{port}"
    assert next(answers) == ["10.255.255.1"]


def test_the_next_address_of_a_host_is_called_where_the_first_one_takes_no_connection(hooks: Receiver) -> None:
    """Regression: a receiver with an IPv6 address that its network does not route was never reached."""
    port = hooks.url.rpartition(":")[2].rstrip("/")
    rule = f"http://hooks.example:{port}/"
    assert post(f"{rule}a", rule, resolve=lambda host, port: ["::1", "127.0.0.2", "127.0.0.1"]) == ReceiverReply(204)
    assert [got.headers["host"] for got in hooks.requests] == [f"hooks.example:{port}"]
    nowhere = post(f"{rule}a", rule, resolve=lambda host, port: ["::1", "127.0.0.2"])
    assert nowhere == ReceiverReply(failure="unreachable")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(hooks: Receiver, status: int) -> None:
    hooks.answer = lambda request: Say(status, {"location": f"{hooks.url}inside"})
    assert post(f"{hooks.url}a", hooks.url) == ReceiverReply(status)
    assert [request.path for request in hooks.requests] == ["/a"]


def test_a_url_that_the_rules_no_longer_allow_is_not_called(hooks: Receiver) -> None:
    assert post(f"{hooks.url}a") == ReceiverReply(failure=NOT_ALLOWED)
    assert post(f"{hooks.url}a", f"{hooks.url}b/") == ReceiverReply(failure=NOT_ALLOWED)
    assert post("https://hooks.example:8443/a") == ReceiverReply(failure=NOT_ALLOWED)
    assert not hooks.requests


def test_neither_a_proxy_nor_a_cookie_has_a_part_in_it(hooks: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    hooks.answer = lambda request: Say(200, {"set-cookie": "session=1; Path=/"})
    assert post(f"{hooks.url}a", hooks.url) == ReceiverReply(200)
    assert post(f"{hooks.url}a", hooks.url) == ReceiverReply(200)
    assert "cookie" not in hooks.requests[1].headers


def test_a_receiver_that_is_slow_dead_or_breaks_off_costs_a_word(hooks: Receiver) -> None:
    hooks.answer = lambda request: Say(wait_s=2.0)
    assert post(f"{hooks.url}a", hooks.url, timeout_s=0.2) == ReceiverReply(failure="timeout")
    hooks.answer = lambda request: Say(200, cut=True)
    assert post(f"{hooks.url}a", hooks.url) == ReceiverReply(failure="closed")
    assert post("http://127.0.0.1:9/a", "http://127.0.0.1:9/") == ReceiverReply(failure="unreachable")
    assert post("https://no-such-host.invalid/a", resolve=lambda host, port: []) == ReceiverReply(failure="no_public_address")


def test_a_retry_after_is_read(hooks: Receiver) -> None:
    hooks.answer = lambda request: Say(429, {"retry-after": "12"})
    assert post(f"{hooks.url}a", hooks.url) == ReceiverReply(429, retry_after_s=12.0)


def test_a_certificate_has_to_be_that_of_the_host_and_of_a_trusted_authority(tmp_path: Path) -> None:
    """The connection goes to an address, and the certificate is checked against the name."""
    authority = Authority(tmp_path)
    with receiver(certificate=authority.issue("hooks.example")) as hooks:
        port = hooks.url.rpartition(":")[2].rstrip("/")

        def answer(host: str, ca: str) -> ReceiverReply:
            rule = f"https://{host}:{port}/"
            webhooks = WebhooksSettings(signing_keys=(new_signing_key(),), urls=(rule,), ca=ca, timeout_s=5.0)
            poster = Poster(webhooks, resolve=lambda host, port: ["127.0.0.1"])
            return asyncio.run(poster.post(f"{rule}a", HEADERS, b"{}", look_ups.append))

        assert answer("hooks.example", str(authority.file)) == ReceiverReply(204)
        assert answer("other.example", str(authority.file)) == ReceiverReply(failure="tls")
        assert answer("hooks.example", "") == ReceiverReply(failure="tls")
        assert len(hooks.requests) == 1


def test_authorities_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    webhooks = WebhooksSettings(signing_keys=(new_signing_key(),), urls=("*",), ca=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"webhooks.ca: no certificates can be read"):
        Poster(webhooks)
