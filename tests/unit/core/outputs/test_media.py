from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Media
from penstock.outputs.media import filename_fault, split_filename, stored_type


@pytest.mark.parametrize("content_type", ["image/png", "text/csv; charset=utf-8", 'audio/ogg;codecs="opus, vorbis"', "a/b+c"])
def test_a_media_type_may_have_parameters(content_type: str) -> None:
    assert Media(b"", content_type).content_type == content_type


@pytest.mark.parametrize(
    ("content_type", "words"),
    [
        ("", "is not a media type"),
        ("png", "is not a media type"),
        ("image/png\r\nset-cookie: a=b", "is not a media type"),
        ("image/png\n", "is not a media type"),
        ("image/pñg", "is not a media type"),
        ("text/plain; charset", "is not a media type"),
        ("a/" + "b" * 200, "is not a media type"),
        ("image/png; filename=a.png", "passed as filename"),
        ("image/png;FILENAME*=UTF-8''a.png", "passed as filename"),
        ("application/vnd.penstock.shard", "penstock's own"),
    ],
)
def test_what_is_no_media_type_of_an_output_is_refused(content_type: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Media(b"", content_type)


@pytest.mark.parametrize("name", ["", "a/b.png", "..", ".bashrc", "a\\b.png", "a\r\nb", "a\0b", "é" * 101, "\udcff"])
def test_a_name_that_leads_elsewhere_or_cannot_be_written_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="filename"):
        Media(b"", "image/png", name)


def test_text_is_not_bytes() -> None:
    with pytest.raises(TypeError, match="Media takes bytes, not str"):
        Media("text", "text/plain")  # type: ignore[arg-type]


def test_two_of_the_same_bytes_type_and_name_are_equal() -> None:
    assert Media(b"a", "image/png", "a.png") == Media(bytearray(b"a"), "image/png", "a.png")
    assert Media(b"a", "image/png", "a.png") != Media(b"a", "image/png")
    assert len({Media(b"a", "image/png"), Media(b"a", "image/png")}) == 1
    assert repr(Media(b"abc", "image/png", "a.png")) == "<Media 'image/png', 'a.png', 3 bytes>"


@given(st.text(max_size=80))
def test_a_name_is_stored_with_the_type_in_ascii_and_found_again(name: str) -> None:
    if filename_fault(name):
        return
    stored = stored_type("text/csv; charset=utf-8", name)
    assert stored.isascii()
    assert stored.isprintable()
    assert split_filename(stored) == ("text/csv; charset=utf-8", name)


def test_without_a_name_nothing_more_is_stored() -> None:
    assert stored_type("image/png", None) == "image/png"
    assert split_filename("image/png") == ("image/png", None)
