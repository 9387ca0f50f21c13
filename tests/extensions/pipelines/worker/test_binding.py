"""What a stage gets and what the result is: passed on, cut out of an output, and joined."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidInput, TooLarge
from penstock.extensions.pipelines.spec import Wanted
from penstock.extensions.pipelines.worker import binding
from penstock.extensions.pipelines.worker.binding import bound_input, bound_result
from penstock.inputs.form import FormPart, decode_form, encode_form
from penstock.job import FORM_MEDIA, TENSORS_MEDIA, Payload
from penstock.outputs.bundle import BUNDLE_MEDIA, decode_head, head_length, with_files
from penstock.outputs.media import Media, stored_type

JSON = "application/json"
PICTURE = Payload(stored_type("image/png", "cat.png"), b"png")
BOXES = Payload(JSON, b'{"boxes": [{"x": 1}, {"x": 2}], "n": 2}')
VALUES = {"input": Payload(JSON, b'{"id": 7}'), "picture": PICTURE, "boxes": BOXES}


def read(payload: Payload) -> bytes:
    assert not payload.blob, "a value that is passed on whole is not read"
    return payload.data


def as_input(wanted: Wanted, *, form: bool = False, **values: Payload) -> Payload:
    return bound_input(wanted, {**VALUES, **values}, read, form=form)


def as_result(wanted: Wanted, **values: Payload) -> Payload:
    return bound_result(wanted, {**VALUES, **values}, read)


def unbundled(payload: Payload) -> Any:
    assert payload.content_type == BUNDLE_MEDIA
    data, end = payload.data, 4 + head_length(payload.data[:4])
    bundle = decode_head(data[4:end])
    files = [data[span.start : span.end] for _, span in bundle.files]
    return with_files(json.loads(data[bundle.json.start : bundle.json.end]), files)


def test_a_whole_value_is_passed_on_by_its_name() -> None:
    large = Payload("image/png", blob="0123.out")
    assert as_input("large", large=large) is large
    assert as_result("large", large=large) is large


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("boxes.n", 2),
        ("boxes.boxes.1.x", 2),
        ({"all": "boxes", "id": "input.id"}, {"all": {"boxes": [{"x": 1}, {"x": 2}], "n": 2}, "id": 7}),
    ],
)
def test_fields_are_found_by_their_path_and_joined_by_their_names(wanted: Wanted, found: Any) -> None:
    for payload in (as_input(wanted), as_result(wanted)):
        assert payload.content_type == JSON
        assert json.loads(payload.data) == found


def test_files_among_the_members_make_a_form_for_a_model_and_a_bundle_for_the_caller() -> None:
    made = as_input({"image": "picture", "boxes": "boxes.boxes"})
    assert made.content_type == FORM_MEDIA
    assert decode_form(made.data) == [
        FormPart("image", b"png", "image/png", "cat.png"),
        FormPart("boxes", b'[{"x":1},{"x":2}]', JSON),
    ]
    result = as_result({"image": "picture", "n": "boxes.n"})
    assert unbundled(result) == {"image": Media(b"png", "image/png", "cat.png"), "n": 2}


def test_a_form_can_be_asked_for() -> None:
    made = as_input({"left": "boxes.n"}, form=True)
    assert decode_form(made.data) == [FormPart("left", b"2", JSON)]


def test_a_form_and_a_bundle_are_looked_into() -> None:
    parts = [FormPart("photo", b"png", "image/png", "p.png"), FormPart("top", b'{"n": 3}', JSON)]
    sent = Payload(FORM_MEDIA, encode_form(parts))
    photo = as_input("sent.photo", sent=sent)
    assert (photo.content_type, photo.data) == (stored_type("image/png", "p.png"), b"png")
    assert as_input("sent.top.n", sent=sent).data == b"3"
    bundle = as_result({"image": "picture", "deep": "boxes.boxes"})
    assert as_input("bundle.deep.0.x", bundle=bundle).data == b"1"
    assert as_input("bundle.image", bundle=bundle).data == b"png"


def test_a_bundle_is_a_form_to_the_next_stage() -> None:
    made = as_input("bundle", bundle=as_result({"image": "picture", "n": "boxes.n"}))
    assert decode_form(made.data) == [FormPart("image", b"png", "image/png", "cat.png"), FormPart("n", b"2", JSON)]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("boxes.nothing", "there is no boxes.nothing: boxes has no 'nothing'"),
        ("boxes.boxes.9", "boxes.boxes has no '9'"),
        ("picture.n", "names a field of picture, which is image/png and has none"),
        ({"x": "tensors"}, "can be passed on alone"),
    ],
)
def test_what_is_not_there_is_said_in_words(wanted: Wanted, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        as_input(wanted, tensors=Payload(TENSORS_MEDIA, b""))
    assert said in refused.value.message


def test_an_object_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "MOST_JOINED_BYTES", 20)
    with pytest.raises(TooLarge):
        as_input({"a": "boxes", "b": "boxes"})
