"""Which headers of a request model code may see."""

from __future__ import annotations

import pytest

from penstock.access import HANDED_ON_CREDENTIALS, wanted_headers
from penstock.errors import TooLarge


def test_only_named_headers_are_kept_and_repeats_are_joined() -> None:
    headers = [(b"x-tenant", b"blue"), (b"cookie", b"a=b"), (b"x-tenant", b"red"), (b"x-late", b"\xe9")]
    assert wanted_headers(headers, ("x-tenant", "x-late")) == {"x-tenant": "blue, red", "x-late": "é"}
    assert wanted_headers(headers, ()) == {}


def test_a_star_stands_for_every_header_but_credentials_and_those_of_the_connection() -> None:
    headers = [
        (b"x-tenant", b"blue"),
        (b"host", b"localhost"),
        (b"authorization", b"Bearer x"),
        (b"cookie", b"a=b"),
        (b"transfer-encoding", b"chunked"),
        (b"x-tenant", b"red"),
    ]
    assert wanted_headers(headers, ("*",)) == {"x-tenant": "blue, red", "host": "localhost"}


def test_a_star_stands_for_no_header_in_which_a_gateway_hands_on_who_a_caller_is() -> None:
    headers = [(name.encode(), b"secret") for name in sorted(HANDED_ON_CREDENTIALS)]
    assert {"x-api-key", "x-auth-token", "x-forwarded-access-token"} <= HANDED_ON_CREDENTIALS
    assert wanted_headers([*headers, (b"x-tenant", b"blue")], ("*",)) == {"x-tenant": "blue"}
    # Settings that name one want it.
    assert wanted_headers(headers, ("x-api-key",)) == {"x-api-key": "secret"}


def test_headers_for_the_model_are_bounded() -> None:
    with pytest.raises(TooLarge, match="16384 is the limit"):
        wanted_headers([(b"x-long", b"x" * 16_384)], ("*",))
