"""Multipart forms: the input of a model, files that arrive in pieces, and forms over a limit."""

from __future__ import annotations

import pytest

from penstock.errors import BadParameter, BadRequest, UnsupportedMedia
from penstock.gateway.asgi.multipart import MAX_FIELD_BYTES, UploadForm, multipart_parts
from penstock.inputs.form import FormPart


def part(disposition: str, content: bytes, media: str = "") -> bytes:
    head = f"Content-Disposition: form-data; {disposition}\r\n" + (f"Content-Type: {media}\r\n" if media else "")
    return b"--B\r\n" + head.encode() + b"\r\n" + content + b"\r\n"


FORM = "multipart/form-data; boundary=B"


def test_every_part_of_a_form_is_read_in_order() -> None:
    body = part('name="note"', b"hi") + part('name="f"; filename="a.png"', b"\x89PNG", "image/png") + b"--B--\r\n"
    assert multipart_parts(body, FORM) == [FormPart("note", b"hi"), FormPart("f", b"\x89PNG", "image/png", "a.png")]


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"no form at all", FORM),
        (b"--B--\r\n", "multipart/form-data"),
        (part('name="data"', b"x") + b"--B--\r\n", "multipart/form-data; boundary=" + "B" * 71),
        (part('name="data"', b"x"), FORM),
        (part('name="data"', b"x") * 17 + b"--B--\r\n", FORM),
        (part('name="data"; x="' + "y" * 5_000 + '"', b"x") + b"--B--\r\n", FORM),
    ],
    ids=["no-form", "no-boundary", "long-boundary", "cut-off", "17-parts", "long-header"],
)
def test_a_form_that_cannot_be_read_is_refused(body: bytes, media: str) -> None:
    with pytest.raises(BadRequest):
        multipart_parts(body, media)


UPLOAD = (
    part('name="purpose"', b"first")
    + part('name="file"; filename="rows.jsonl"', b"\r\n--A\r\nrow" * 50, "text/plain")
    + part('name="purpose"', b"batch")
    + b"--B--\r\n"
)


def read_whole(form: UploadForm, body: bytes, *, size: int) -> bytes:
    content = b"".join(form.write(body[at : at + size]) for at in range(0, len(body), size))
    form.finish()
    return content


@pytest.mark.parametrize("size", [1, 7, 64, len(UPLOAD)])
def test_an_uploaded_file_is_the_same_in_pieces_of_any_size(size: int) -> None:
    form = UploadForm(FORM)
    assert read_whole(form, UPLOAD, size=size) == b"\r\n--A\r\nrow" * 50
    assert (form.filename, form.field("purpose"), form.field("other")) == ("rows.jsonl", "batch", None)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (part('name="file"', b"a") * 2 + b"--B--\r\n", BadParameter),
        (part('name="purpose"', b"batch") + b"--B--\r\n", BadParameter),
        (part('name="file"', b"a").rstrip(), BadRequest),
        (part('name="purpose"', b"x" * (MAX_FIELD_BYTES + 1)) + b"--B--\r\n", BadRequest),
    ],
    ids=["two-files", "no-file", "cut-off", "long-field"],
)
def test_a_form_without_exactly_one_whole_file_is_refused(body: bytes, fault: type[BadRequest]) -> None:
    with pytest.raises(fault):
        read_whole(UploadForm(FORM), body, size=100)


def test_an_upload_that_is_no_form_is_refused_before_it_is_read() -> None:
    with pytest.raises(UnsupportedMedia):
        UploadForm("application/json")
