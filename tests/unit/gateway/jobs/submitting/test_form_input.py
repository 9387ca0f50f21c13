"""What the gateway stores of a form: the part that is the input, or all parts, checked by the model's schema."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.backlog import capacity_of
from penstock.errors import BadRequest, InvalidInput, PenstockError, TooLarge, UnsupportedMedia
from penstock.gateway.jobs.submitting.form_input import input_of
from penstock.gateway.models.registry import VersionEntry
from penstock.gateway.models.validators import compile_schema
from penstock.inputs.file import File
from penstock.inputs.form import FormPart, decode_form
from penstock.job import FORM_MEDIA, Payload
from penstock.model_spec import VersionInfo
from penstock.settings.gateway import GatewaySettings

PNG = FormPart("image", b"\x89PNG", "image/png", "cat.png")
ORDER = {
    "type": "object",
    "properties": {
        "image": File.schema(),
        "threshold": {"type": "number", "maximum": 1},
        "rows": {"type": "array", "items": {"type": "number"}},
        "mask": {"type": "string", "contentEncoding": "base64", "maxLength": 8},
    },
    "required": ["image"],
}
TASK = {"anyOf": [{"type": "object", "properties": {"image": {"type": "string"}}}, {"type": "string"}]}


def version(schema: dict[str, Any] | None, *accepts: str) -> VersionEntry:
    info = VersionInfo(schema, None, accepts or ("application/json",))
    return VersionEntry("1", info, compile_schema(schema, model="m") if schema else None, capacity_of(()))


def stored(schema: dict[str, Any] | None, *parts: FormPart, accepts: tuple[str, ...] = ()) -> Payload:
    return input_of(parts, version(schema, *accepts), GatewaySettings())


def field(name: str, text: str) -> FormPart:
    return FormPart(name, text.encode())


def test_a_form_for_an_object_is_stored_with_all_its_parts() -> None:
    parts = [PNG, field("threshold", "0.5"), field("rows", "1"), field("rows", "2")]
    found = stored(ORDER, *parts)
    assert (found.content_type, decode_form(found.data)) == (FORM_MEDIA, parts)


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (field("colour", "red"), "/colour"),
        (FormPart("second", b"x", "image/png", "b.png"), "/second"),
        (field("threshold", "2"), "/threshold"),
        (field("threshold", "0.5\n[" + "[" * 80), "/threshold"),
        (field("rows", '["a"]'), "/rows/0"),
        (field("rows", '{"a": 1, "a": 2}'), "/rows"),
        (field("rows", "[" * 100 + "]" * 100), "/rows"),
        (FormPart("mask", b"x" * 7, "", "mask"), "/mask"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name_before_anything_is_stored(part: FormPart, fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        stored(ORDER, PNG, part)
    assert [error["pointer"] for error in caught.value.errors] == [fault]


def test_a_file_within_its_bounds_and_long_lists_pass() -> None:
    assert stored(ORDER, PNG, FormPart("mask", b"x" * 6, "", "mask")).content_type == FORM_MEDIA
    assert stored(ORDER, PNG, field("rows", f"[{','.join(['1'] * 200_000)}]")).content_type == FORM_MEDIA
    # As with a body of JSON, more values than this are checked by the worker alone.
    assert stored(ORDER, PNG, field("rows", f"[{','.join(['x'] * 600_000)}]")).content_type == FORM_MEDIA


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        stored(ORDER, field("threshold", "0.5"))
    assert "image" in caught.value.errors[0]["detail"]


@pytest.mark.parametrize(
    ("schema", "accepts", "part", "payload"),
    [
        (None, ("*/*",), PNG, Payload("image/png", b"\x89PNG")),
        (None, ("*/*",), FormPart("f", b"x", "", "f"), Payload("application/octet-stream", b"x")),
        (None, ("*/*",), field("data", '{"x": 4}'), Payload("application/json", b'{"x": 4}')),
        (TASK, ("image/*", "application/json"), PNG, Payload("image/png", b"\x89PNG")),
        (ORDER, (), field("data", '{"image": "AA=="}'), Payload("application/json", b'{"image": "AA=="}')),
    ],
)
def test_one_part_that_is_the_whole_input_is_stored_as_such_a_body(
    schema: dict[str, Any] | None, accepts: tuple[str, ...], part: FormPart, payload: Payload
) -> None:
    assert stored(schema, part, accepts=accepts) == payload


def test_a_model_of_one_file_gets_it_with_its_name() -> None:
    found = stored(File.schema(), PNG, accepts=("*/*",))
    assert decode_form(found.data) == [PNG]


def test_a_form_for_a_version_that_nobody_has_loaded_is_stored_as_it_is() -> None:
    unknown = VersionEntry("1", None, None, capacity_of(()))
    found = input_of([PNG, field("whatever", "x")], unknown, GatewaySettings())
    assert (found.content_type, len(decode_form(found.data))) == (FORM_MEDIA, 2)


@pytest.mark.parametrize(
    ("schema", "parts", "error"),
    [
        (None, [], BadRequest),
        (None, [FormPart("f", b"x", "text/html", "f")], UnsupportedMedia),
        (None, [FormPart("f", b"x", "multipart/form-data; boundary=B", "f")], BadRequest),
        (None, [field("data", " " * 5_000_000)], TooLarge),
        (None, [FormPart("f", b" " * 5_000_000, "application/json", "f.json")], TooLarge),
        (None, [PNG, field("note", "hi")], InvalidInput),
        (ORDER, [PNG, field("threshold", " " * 5_000_000)], TooLarge),
    ],
)
def test_a_form_that_no_model_could_take_is_refused(
    schema: dict[str, Any] | None, parts: list[FormPart], error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        stored(schema, *parts, accepts=("image/*", "application/json"))
