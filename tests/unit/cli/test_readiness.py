from __future__ import annotations

import pytest

from penstock.cli.readiness import readiness, reason_of


def test_a_gateway_that_does_not_listen_is_not_ready() -> None:
    found = readiness("http://127.0.0.1:9")
    assert not found.ready
    assert "does not listen" in found.why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"detail": "not ready", "errors": [{"pointer": "square", "detail": "still loading"}]}', "square: still loading"),
        (b'{"detail": "not ready"}', "not ready"),
        (b"<html>", ""),
        (b"[]", ""),
    ],
)
def test_what_is_missing_is_read_from_the_body(content: bytes, why: str) -> None:
    assert reason_of(content) == why
