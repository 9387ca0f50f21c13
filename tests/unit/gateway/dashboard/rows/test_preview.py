"""Previews of bytes that a caller chose."""

from __future__ import annotations

import struct

import pytest

from penstock import Media
from penstock.gateway.dashboard.rows.preview import PREVIEW_BYTES, SHOWN_BYTES, TEXT_BYTES, preview
from penstock.handlers.media import encode
from penstock.inputs.form import FormPart, encode_form
from penstock.inputs.request import packed
from penstock.job import FORM_MEDIA, PACKED_MEDIA, TENSORS_MEDIA, Payload


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\x00\x00\x00" + b"\x00" * 30


def jpeg(width: int, height: int) -> bytes:
    app = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + b"\x00" * 9
    return b"\xff\xd8" + app + b"\xff\xc0" + struct.pack(">HBHH", 17, 8, height, width) + b"\x03" + b"\x00" * 9


def gif(width: int, height: int, *, screen: tuple[int, int] | None = None) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", *(screen or (width, height)), 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    control = b"\x21\xf9\x04\0\0\0\0\0" + b"\x21\xfe\x03abc\x02de\x00"
    return head + control + b"\x2c" + struct.pack("<HHHH", 0, 0, width, height) + b"\0\x02\x02L\x01\0;"


def webp(kind: bytes, size: bytes) -> bytes:
    return b"RIFF\x40\0\0\0WEBP" + kind + b"\x30\0\0\0" + size + bytes(24)


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


IMAGES = [
    ("image/png", png(3, 2)),
    ("image/jpeg", jpeg(3, 2)),
    ("image/gif", gif(3, 2)),
    *(("image/webp", make(3, 2)) for make in (lossy, lossless, extended)),
]


def shown(content_type: str, data: bytes) -> tuple[str, str, str]:
    found = preview(content_type, data[:PREVIEW_BYTES], len(data))
    return found.kind, found.text, found.note


def test_json_is_set_out_when_it_is_whole_and_shown_as_it_is_when_it_is_not() -> None:
    assert shown("application/json; charset=utf-8", b'{"x":[1,2]}') == ("text", '{\n  "x": [\n    1,\n    2\n  ]\n}', "")
    assert shown("application/json", b'{"x":') == ("text", '{"x":', "")
    kind, text, note = shown("application/json", b'"' + b"a" * PREVIEW_BYTES + b'"')
    assert (kind, len(text), note) == ("text", TEXT_BYTES, "the first 4 KiB")


def test_text_loses_what_a_page_cannot_show() -> None:
    assert shown("text/plain", b"a\x1b[31mb\x00\tc\nd\xff")[1] == "a\ufffd[31mb\ufffd\tc\nd\ufffd"
    assert shown("text/html", b"<script>alert(1)</script>")[1] == "<script>alert(1)</script>"
    assert "\u202e" not in shown("text/plain", "a\u202eb".encode())[1]


def test_of_several_files_the_json_is_shown_and_never_a_fault() -> None:
    media, data = encode({"label": "<b>", "file": Media(b"x" * PREVIEW_BYTES, "image/png")})
    found = preview(media, data[:PREVIEW_BYTES], len(data))
    assert (found.kind, found.files) == ("text", 1)
    assert '"label": "<b>"' in found.text
    assert '"url": "parts/0"' in found.text
    for sent in (b"a", b"\0\0\0\1\xc1", b"\xff\xff\xff\xff"):
        assert shown(media, sent) == ("none", "", "not shown")


def test_other_bytes_are_shown_as_bytes() -> None:
    kind, text, note = shown("application/octet-stream", bytes(range(256)) * 2)
    assert (kind, note) == ("hex", "the first 128 bytes")
    assert text.splitlines()[2] == "0020  20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f   !\"#$%&'()*+,-./"
    assert shown("image/svg+xml", b"<svg onload=alert(1)>")[0] == "hex"


@pytest.mark.parametrize(("media", "data"), IMAGES)
def test_a_small_image_is_shown_as_data_of_its_own_kind(media: str, data: bytes) -> None:
    found = preview(media, data, len(data))
    assert (found.kind, found.note) == ("image", "3 x 2")
    assert found.image.startswith(f"data:{media};base64,")


@pytest.mark.parametrize(("media", "data"), IMAGES)
def test_an_image_among_bytes_without_a_type_is_shown_as_the_image_that_it_is(media: str, data: bytes) -> None:
    # Regression: handlers that return bytes name no media type, and their pictures were shown as hexadecimal digits.
    assert preview("application/octet-stream", data, len(data)) == preview(media, data, len(data))
    # Regression: of a larger one the page showed a broken image, because its address goes by the media type.
    assert preview("application/octet-stream", data, PREVIEW_BYTES + 1).kind == "hex"


@pytest.mark.parametrize(("media", "data"), IMAGES)
def test_an_image_that_is_cut_anywhere_is_no_fault(media: str, data: bytes) -> None:
    assert {preview(media, data[:size], len(data)).kind for size in range(len(data))} <= {"none", "image"}


@pytest.mark.parametrize(
    ("media", "data", "note"),
    [
        ("image/png", png(60_000, 60_000), "60000 x 60000 pixels, too large for a preview"),
        ("image/jpeg", jpeg(60_000, 60_000), "60000 x 60000 pixels, too large for a preview"),
        ("image/gif", gif(60_000, 60_000, screen=(3, 2)), "60000 x 60000 pixels, too large for a preview"),
        ("image/gif", b"GIF89a<script>alert(1)</script>", "the content does not match its media type"),
        ("image/webp", extended(16_000, 16_000), "16000 x 16000 pixels, too large for a preview"),
        ("image/webp", b"RIFF\x40\0\0\0WAVEfmt ", "the content does not match its media type"),
        ("image/png", b"<script>alert(1)</script>", "the content does not match its media type"),
        ("image/jpeg", b"\xff\xd8\xff\xd9", "the content does not match its media type"),
        ("image/jpeg", b"\xff\xd8" + b"\xff\xe0\x00\x00" * 10, "the content does not match its media type"),
        ("image/png", png(3, 2) + b"\x00" * SHOWN_BYTES, "too large for a preview"),
        ("text/plain", b"", "empty"),
    ],
)
def test_what_would_harm_or_mislead_the_viewer_is_not_shown(media: str, data: bytes, note: str) -> None:
    assert shown(media, data) == ("none", "", note)


def test_a_form_is_shown_part_by_part_and_an_input_with_its_request_as_itself() -> None:
    parts = [FormPart("image", b"\x89PNG", "image/png", "cat.png"), FormPart("title", b"5 <b>")]
    form = encode_form(parts)
    shown = preview(FORM_MEDIA, form, len(form))
    assert (shown.kind, shown.text) == ("text", "image: file 'cat.png', image/png, 4 bytes\ntitle: 5 <b>")
    asked = packed(Payload("application/json", b"[1]"), headers={"x-tenant": "blue"}, query={})
    assert preview(asked.content_type, asked.data, len(asked.data)) == preview("application/json", b"[1]", 3)


@pytest.mark.parametrize("media", sorted(PACKED_MEDIA))
def test_what_only_claims_to_be_packed_or_is_cut_is_not_shown(media: str) -> None:
    assert preview(media, b"\xc1", 1).kind == "none"
    assert preview(media, b"\x90", 2).note == ("" if media == TENSORS_MEDIA else "too large for a preview")
