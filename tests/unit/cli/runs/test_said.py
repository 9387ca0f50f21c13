"""Headers and query parameters of `penstock run`: read from the command line, or refused with what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.cli.runs.run import headers_of, query_of
from penstock.errors import BadRequest


def test_names_and_values_are_what_stands_before_and_behind_the_first_mark() -> None:
    assert headers_of(["X-Tenant: blue", "traceparent:00:1", "x-empty:"]) == {
        "x-tenant": "blue",
        "traceparent": "00:1",
        "x-empty": "",
    }
    assert query_of(["language=de=at", "Empty="]) == {"language": "de=at", "Empty": ""}


@pytest.mark.parametrize(
    ("read", "texts", "why"),
    [
        (headers_of, ["X-Tenant"], "is not NAME:VALUE"),
        (headers_of, [": blue"], "is not NAME:VALUE"),
        (headers_of, ["X-Tenant: a", "x-tenant: b"], "names 'x-tenant' a second time"),
        (query_of, ["language"], "is not NAME=VALUE"),
        (query_of, ["=de"], "is not NAME=VALUE"),
        (query_of, ["a=1", "a=2"], "names 'a' a second time"),
    ],
)
def test_what_is_no_pair_or_comes_twice_is_refused(
    read: Callable[[list[str]], dict[str, str]], texts: list[str], why: str
) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        read(texts)
    assert "once per name" in (refused.value.hint or "")
