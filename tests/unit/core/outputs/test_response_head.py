from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InternalError
from penstock.outputs.media import split_filename, stored_type, type_fault
from penstock.outputs.response_head import MOST_HEADERS, ResponseHead, header_fault, split_head, with_head

_TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)
_NAMES = st.from_regex(r"[a-z]{1,10}-[a-z]{1,10}", fullmatch=True)


@given(st.integers(200, 599), _TEXT, st.dictionaries(_NAMES, _TEXT, max_size=8), st.booleans())
def test_a_head_is_stored_with_the_type_in_ascii_and_found_again(
    status: int, phrase: str, headers: dict[str, str], untyped: bool
) -> None:
    head = ResponseHead(status, phrase, headers, untyped)
    stored = with_head(stored_type("text/csv; charset=utf-8", "a b.csv"), head)
    assert stored.isascii()
    assert stored.isprintable()
    media, found = split_head(stored)
    assert (found or ResponseHead()) == head
    assert split_filename(media) == split_filename(stored) == ("text/csv; charset=utf-8", "a b.csv")


def test_a_head_that_says_nothing_is_not_stored() -> None:
    assert with_head("application/json", ResponseHead()) == "application/json"
    assert split_head("application/json") == ("application/json", None)
    assert split_filename("application/json") == ("application/json", None)


@pytest.mark.parametrize(
    ("status", "phrase", "headers", "words"),
    [
        (199, "", {}, "from 200 to 599, not 199"),
        (600, "", {}, "not 600"),
        (200, "a\r\nset-cookie: b", {}, "reason phrase"),
        (200, "x" * 201, {}, "at most 200 characters"),
        (200, "", {"x-a": "1\r\nx-b: 2"}, "one line"),
        (200, "", {"x-a": "1\n"}, "one line"),
        (200, "", {"x-a": "\u0416"}, "latin-1"),
        (200, "", {"x-a\r\nx-b": "1"}, "is not the name of a header"),
        (200, "", {"": "1"}, "is not the name of a header"),
        (200, "", {"Content-Length": "1"}, "set by the gateway"),
        (200, "", {"Transfer-Encoding": "chunked"}, "set by the gateway"),
        (200, "", {"X-Request-ID": "1"}, "set by the gateway"),
        (200, "", {"X-Penstock-Job": "1"}, "set by the gateway"),
        (200, "", {"Set-Cookie": "a=b"}, "set by the gateway"),
        (200, "", {f"x-{number}": "1" for number in range(MOST_HEADERS + 1)}, "at most 64 headers"),
        (200, "", {"x-a": "1" * 4_200}, "4096 is the limit"),
    ],
)
def test_what_no_response_can_begin_with_is_refused(status: int, phrase: str, headers: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ResponseHead(status, phrase, headers)


@pytest.mark.parametrize("text", ["", "%", "AAAA", "lA", "____"])
def test_a_head_that_nobody_wrote_is_our_own_fault(text: str) -> None:
    with pytest.raises(InternalError, match="cannot be read"):
        split_head(f"image/png; x-penstock-head={text}")


def test_no_media_type_of_a_handler_can_hold_a_head() -> None:
    assert "penstock's own parameters" in type_fault("image/png; X-Penstock-Head=AAAA")


@pytest.mark.parametrize("name", ["Alt-Svc", "access-control-allow-origin", "Report-To", "set-cookie", "X-Penstock-Job"])
def test_a_handler_says_nothing_that_browsers_take_for_the_whole_origin(name: str) -> None:
    assert "is set by the gateway" in header_fault(name, "v")
