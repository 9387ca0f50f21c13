from __future__ import annotations

import pytest

from penstock.errors import BadRequest, UnsupportedMedia
from penstock.gateway.asgi.negotiation import (
    HeadersTooLarge,
    idempotency_key,
    media_type,
    parse_preference,
    parse_wait,
    read_head,
    refuse_encoded,
)
from penstock.job import FORM_MEDIA


def test_a_head_keeps_the_headers_that_matter() -> None:
    assert read_head([(b"host", b"x"), (b"accept-language", b"en"), (b"prefer", b"wait=1")]) == {
        b"host": b"x",
        b"prefer": b"wait=1",
    }


def test_a_repeated_header_is_read_as_a_list() -> None:
    assert read_head([(b"prefer", b"wait=1"), (b"prefer", b"respond-async")]) == {b"prefer": b"wait=1, respond-async"}


@pytest.mark.parametrize("headers", [[(b"a", b"b")] * 101, [(b"a", b"b" * 16_400)]])
def test_too_many_or_too_large_headers_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(HeadersTooLarge):
        read_head(headers)


def test_a_wait_is_cut_at_thirty_seconds() -> None:
    assert [parse_wait(text) for text in (None, "0", "2.5", "900")] == [0.0, 0.0, 2.5, 30.0]


@pytest.mark.parametrize("text", ["-1", "inf", "soon", ""])
def test_a_wait_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="wait"):
        parse_wait(text)


@pytest.mark.parametrize(
    ("given", "wait_s", "applied"),
    [
        (None, 0.0, b""),
        (b"respond-async", 0.0, b"respond-async"),
        (b"wait=5", 5.0, b"wait=5"),
        (b"respond-async, wait=5", 5.0, b"respond-async, wait=5"),
        (b"wait=100", 30.0, b"wait=30"),
        (b"wait=soon, return=minimal", 0.0, b""),
    ],
)
def test_what_of_prefer_can_be_honoured_is_repeated(given: bytes | None, wait_s: float, applied: bytes) -> None:
    preferred = parse_preference(given)
    assert (preferred.wait_s, preferred.applied) == (wait_s, applied)


@pytest.mark.parametrize("key", [b"", b"a" * 256, b"tab\there", b"\xff", b" padded "])
def test_an_unusable_idempotency_key_is_refused(key: bytes) -> None:
    with pytest.raises(BadRequest):
        idempotency_key({b"idempotency-key": key})


def test_an_idempotency_key_may_have_255_characters() -> None:
    assert idempotency_key({b"idempotency-key": b"a" * 255}) == "a" * 255


@pytest.mark.parametrize(
    ("given", "accepts", "read"),
    [
        (None, (), "application/json"),
        (None, ("image/png",), "application/octet-stream"),
        (None, ("text/plain", "application/json"), "application/json"),
        (None, ("image/*", "application/octet-stream", "application/json"), "application/octet-stream"),
        (None, ("application/json", "application/octet-stream"), "application/json"),
        (b"application/json; charset=utf-8", ("application/json",), "application/json"),
        (b"Image/PNG", ("image/*",), "Image/PNG"),
        (b"text/plain", ("*/*",), "text/plain"),
        (b"multipart/form-data; boundary=x", ("application/json",), "multipart/form-data; boundary=x"),
        (b"anything/goes", (), "anything/goes"),
    ],
)
def test_a_media_type_is_read_against_what_the_model_takes(given: bytes | None, accepts: tuple[str, ...], read: str) -> None:
    assert media_type(given, accepts=accepts) == read


@pytest.mark.parametrize(("given", "accepts"), [(b"text/plain", ("application/json",)), (b"image/png", ("image/jpeg",))])
def test_a_media_type_that_the_model_does_not_take_is_refused(given: bytes, accepts: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedMedia, match=accepts[0]):
        media_type(given, accepts=accepts)


@pytest.mark.parametrize("accepts", [("application/json", "text/plain"), ("text/*",), ()])
def test_a_text_in_a_charset_that_is_not_on_the_list_is_refused_before_its_body_is_read(accepts: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedMedia, match="'punycode' are not read"):
        media_type(b"text/plain; charset=punycode", accepts=accepts)


@pytest.mark.parametrize("accepts", [("*/*",), ("application/*",), ()])
def test_the_stored_form_of_forms_is_not_for_callers(accepts: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedMedia):
        media_type(FORM_MEDIA.encode(), accepts=accepts)


def test_a_model_of_bytes_is_sent_texts_of_any_charset() -> None:
    assert media_type(b"text/csv; charset=Shift_JIS", accepts=("*/*",)) == "text/csv; charset=Shift_JIS"


def test_a_form_is_refused_even_by_a_model_of_unknown_tastes_and_says_how_to_send_json() -> None:
    with pytest.raises(UnsupportedMedia) as refused:
        media_type(b"application/x-www-form-urlencoded", accepts=())
    assert "content-type: application/json" in (refused.value.hint or "")


def test_only_unencoded_bodies_are_taken() -> None:
    refuse_encoded({b"content-encoding": b"identity"})
    with pytest.raises(UnsupportedMedia, match="gzip"):
        refuse_encoded({b"content-encoding": b"gzip"})
