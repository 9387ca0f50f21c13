from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Media
from penstock.errors import InternalError
from penstock.gateway.asgi.multipart import MAX_PARTS, multipart_parts
from penstock.outputs.bundle import (
    HEAD_LENGTH_BYTES,
    decode_head,
    encode_bundle,
    head_length,
    part_frames,
    reference,
    split_parts,
    with_files,
)
from penstock.outputs.media import filename_fault

TOKEN = "0123456789abcdef0123456789abcdef"
NAMES = st.none() | st.text(min_size=1, max_size=20).filter(lambda name: not filename_fault(name))
FILE = st.builds(Media, st.binary(max_size=50), st.sampled_from(["image/png", "text/csv; charset=utf-8"]), NAMES)
# With the JSON, as many parts as our own reader of forms takes.
FILES = st.lists(FILE, max_size=MAX_PARTS - 1)


def stored(files: list[Media]) -> tuple[bytes, bytes]:
    """The JSON of an output that is a list of these files, and the payload."""
    text = json.dumps([reference(place, file, TOKEN) for place, file in enumerate(files)]).encode()
    return text, encode_bundle(text, files, TOKEN)


def form_of(payload: bytes) -> bytes:
    bundle = decode_head(payload[HEAD_LENGTH_BYTES:][: head_length(payload[:HEAD_LENGTH_BYTES])])
    bodies = [payload[start:end] for start, end in (bundle.json, *(where for _, where in bundle.files))]
    *frames, end = part_frames(bundle)
    return b"".join(frame + body for frame, body in zip(frames, bodies, strict=True)) + end


@given(FILES)
def test_the_files_are_found_where_the_head_says_and_put_back_where_they_were(files: list[Media]) -> None:
    text, payload = stored(files)
    bundle = decode_head(payload[HEAD_LENGTH_BYTES:][: head_length(payload[:HEAD_LENGTH_BYTES])])
    assert payload[slice(*bundle.json)] == text
    found = [Media(payload[slice(*where)], entry.content_type, entry.filename) for entry, where in bundle.files]
    assert found == files
    value, *contents = split_parts(form_of(payload), TOKEN)
    assert with_files(json.loads(value), contents) == files


@given(FILES)
def test_any_reader_of_forms_reads_the_whole(files: list[Media]) -> None:
    text, payload = stored(files)
    result, *parts = multipart_parts(form_of(payload), f"multipart/form-data; boundary={TOKEN}")
    assert (result.name, result.content_type, result.data, result.filename) == ("result", "application/json", text, None)
    assert [part.name for part in parts] == [str(place) for place in range(len(files))]
    assert [(part.content_type, part.data) for part in parts] == [(file.content_type, file.data) for file in files]
    # Without a file name a part is a text.
    assert all(part.filename for part in parts)


@pytest.mark.parametrize(
    "forged",
    [
        {"$media": 1, "content_type": "image/png"},
        {"$media": True, "content_type": "image/png"},
        {"$media": "0", "content_type": "image/png"},
        {"$media": 0},
        {"$media": 0, "content_type": "no type"},
        {"$media": 0, "content_type": "image/png", "filename": "../a"},
        {"$media": 0, "content_type": "image/png", "filename": 5},
    ],
)
def test_an_object_that_only_looks_like_a_reference_stays_as_it_is(forged: dict[str, Any]) -> None:
    assert with_files({"a": [forged]}, [b"file"]) == {"a": [forged]}


@pytest.mark.parametrize("cut", [b"", b"--t\r\n", b"--t\r\na: b\r\n\r\ntext", b"no form at all"])
def test_a_form_that_is_cut_off_is_refused(cut: bytes) -> None:
    with pytest.raises(ValueError, match="cut off"):
        split_parts(cut, "t")


def test_a_head_that_nobody_wrote_is_a_bug() -> None:
    with pytest.raises(InternalError, match="head of a stored bundle"):
        decode_head(b"\xc1")
