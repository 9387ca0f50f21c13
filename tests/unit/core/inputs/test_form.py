"""Forms as inputs: what a schema makes of their parts, and that no part is dropped."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from penstock import File, Image
from penstock.errors import InvalidInput, UnsupportedMedia
from penstock.handlers.media import codec_for
from penstock.inputs.form import FormPart, decode_form, encode_form, form_fields, is_file_schema, names_files, read_form
from penstock.job import FORM_MEDIA

PNG = FormPart("image", b"\x89PNG", "image/png", "cat.png")


@dataclass
class Point:
    x: int


@dataclass
class Order:
    image: Image
    threshold: float = 0.5
    mode: Literal["fast", "good"] = "fast"
    title: str | None = None
    labels: list[str] = field(default_factory=list)
    more: list[File] | None = None
    point: Point | None = None
    mask: bytes = b""


class Model(BaseModel):
    image: Image
    threshold: float = 0.5
    title: str = ""
    more: list[File] = []


def text(name: str, value: str, media: str = "") -> FormPart:
    return FormPart(name, value.encode(), media)


def read(item_type: Any, *parts: FormPart) -> Any:
    return codec_for(item_type).decode(FORM_MEDIA, encode_form(parts))


def faults(item_type: Any, *parts: FormPart) -> dict[str, str]:
    """The fault of each part, by its pointer."""
    with pytest.raises(InvalidInput) as caught:
        read(item_type, *parts)
    return {fault["pointer"]: fault["detail"] for fault in caught.value.errors}


@pytest.mark.parametrize("item_type", [Order, Model])
def test_a_form_with_a_file_and_fields_is_one_typed_input(item_type: Any) -> None:
    made = read(item_type, PNG, text("threshold", "0.75"), text("title", "12"))
    assert (made.image, made.image.content_type, made.image.filename) == (b"\x89PNG", "image/png", "cat.png")
    assert (made.threshold, made.title) == (0.75, "12")


@pytest.mark.parametrize("item_type", [Order, Model])
def test_several_files_of_one_name_are_a_list_and_one_file_is_a_list_of_one(item_type: Any) -> None:
    more = [FormPart("more", name.encode(), "", name) for name in ("a", "b")]
    assert read(item_type, PNG, *more).more == [b"a", b"b"]
    assert read(item_type, PNG, more[0]).more == [b"a"]


def test_the_schema_says_how_a_text_is_read() -> None:
    made = read(
        Order,
        PNG,
        text("mode", "good"),
        text("labels", "1"),
        text("labels", "two"),
        text("point", '{"x": 3}'),
        FormPart("mask", b"\x00\x01", "", "mask.bin"),
    )
    assert (made.mode, made.labels, made.point, made.mask) == ("good", ["1", "two"], Point(3), b"\x00\x01")


@pytest.mark.parametrize(
    "part", [text("labels", '["a", "b"]', "application/json"), FormPart("labels", b'["a", "b"]', "application/json", "l")]
)
def test_a_part_that_says_that_it_is_json_is_read_as_json(part: FormPart) -> None:
    assert read(Order, PNG, part).labels == ["a", "b"]
    assert read(dict[str, Any], text("labels", '["a", "b"]', "application/json")) == {"labels": ["a", "b"]}


def test_a_numbers_list_is_one_text_in_json_or_a_part_per_number() -> None:
    assert read(dict[str, list[int]], text("a", "[1, 2]"), text("b", "3"), text("b", "4"), text("c", "5")) == {
        "a": [1, 2],
        "b": [3, 4],
        "c": [5],
    }


@pytest.mark.parametrize("item_type", [Order, Model])
def test_every_part_without_a_place_is_named(item_type: Any) -> None:
    found = faults(
        item_type,
        PNG,
        text("colour", "red"),
        FormPart("mask~/2", b"x", "", "m"),
        text("threshold", "high"),
        text("title", "a"),
        text("title", "b"),
    )
    assert set(found) == {"/colour", "/mask~0~12", "/threshold", "/title"}
    assert "no such field; it has image, threshold," in found["/colour"]
    assert "'high' cannot be read as JSON" in found["/threshold"]
    assert "2 times" in found["/title"]


def test_a_file_where_the_model_takes_none_is_named() -> None:
    assert "takes no file" in faults(Order, PNG, FormPart("threshold", b"0.5", "image/png", "t"))["/threshold"]
    assert "takes no file" in faults(Order, PNG, FormPart("title", b"0.5", "image/png", "t"))["/title"]
    assert read(Order, PNG, FormPart("title", b"from a file", "text/plain", "t.txt")).title == "from a file"


@pytest.mark.parametrize("item_type", [Order, Model])
def test_a_file_of_the_wrong_type_and_a_missing_field_have_their_place(item_type: Any) -> None:
    found = faults(item_type, FormPart("image", b"hi", "text/html", "page.html"))
    assert "text/html" in found["/image"]
    with pytest.raises(InvalidInput, match="image"):
        read(item_type, text("threshold", "0.5"))


def test_a_dict_takes_any_field_and_keeps_texts_and_files() -> None:
    made = read(dict, PNG, text("note", "5"))
    assert made == {"image": b"\x89PNG", "note": "5"}
    assert made["image"].filename == "cat.png"


@pytest.mark.parametrize("item_type", [bytes, Any])
def test_a_model_of_bytes_takes_exactly_one_file(item_type: Any) -> None:
    assert read(item_type, PNG) == b"\x89PNG"
    assert set(faults(item_type, PNG, text("note", "hi"))) == {"/note"}
    assert set(faults(item_type, PNG, FormPart("second", b"x", "image/png", "b"))) == {"/second"}
    assert set(faults(item_type, text("note", "hi"))) == {"/note"}


def test_a_model_of_one_file_keeps_its_name() -> None:
    made = read(Image, PNG)
    assert (type(made), made.filename, made.content_type) == (Image, "cat.png", "image/png")
    assert codec_for(File).decode("text/csv", b"a,b").content_type == "text/csv"
    assert codec_for(Image).decode("application/json", b'"iVBORw=="') == b"\x89PNG"


def test_the_field_data_is_the_whole_input_in_json_unless_the_model_has_such_a_field() -> None:
    assert read(Point, text("data", '{"x": 4}')) == Point(4)
    assert read(Point, FormPart("anything", b'{"x": 4}', "application/json", "a.json")) == Point(4)
    assert read(list[int], text("data", "[1]")) == [1]
    assert read(dict[str, Any], text("data", '{"x": 4}')) == {"data": '{"x": 4}'}


def test_a_file_field_may_also_hold_base64_as_in_json() -> None:
    assert read(Order, text("image", "iVBORw==")).image == b"\x89PNG"
    in_json = codec_for(Order).decode("application/json", b'{"image": "data:image/png;name=c.png;base64,iVBORw=="}')
    assert (in_json.image, in_json.image.filename) == (b"\x89PNG", "c.png")


def test_text_that_is_no_utf_8_is_named() -> None:
    assert "UTF-8" in faults(Order, PNG, FormPart("title", b"\xff"))["/title"]


def test_a_field_of_a_type_that_is_nested_in_itself_is_read_and_ends() -> None:
    node = {"$ref": "#/$defs/node"}
    schema = {"type": "object", "properties": {"a": node}, "$defs": {"node": node}}
    found = read_form([text("a", "1")], form_fields(schema), takes=lambda _: False, read_json=msgspec.json.decode)
    assert found == {"a": 1}


def test_only_objects_have_fields_and_only_files_are_files() -> None:
    assert form_fields(None) is None
    assert form_fields({"type": "array"}) is None
    union = form_fields({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "array"}]})
    assert union is not None
    assert list(union.named) == ["a"]
    assert is_file_schema(File.schema())
    assert not is_file_schema({"type": "string"})


def test_files_are_found_wherever_they_stand_in_a_schema() -> None:
    assert [names_files(codec_for(kind).schema()) for kind in (Order, Model, File, list[Image])] == [True] * 4
    assert [names_files(codec_for(kind).schema()) for kind in (Point, dict, Any, list[bytes])] == [False] * 4


names = st.text(max_size=8)
parts = st.builds(
    FormPart,
    names,
    st.binary(max_size=20),
    st.sampled_from(["", "image/png", "application/json", "text/plain"]),
    names | st.none(),
)


@given(st.lists(parts, max_size=5))
def test_a_form_is_stored_and_read_again_as_it_came(given_parts: list[FormPart]) -> None:
    assert decode_form(encode_form(given_parts)) == given_parts


@given(st.lists(parts, max_size=5), st.sampled_from([Order, Model, dict, bytes, Any, list[int], File]))
def test_a_form_is_read_or_refused_and_nothing_else(given_parts: list[FormPart], item_type: Any) -> None:
    # Any other error would be the reader's own, and would fail this test.
    with suppress(InvalidInput, UnsupportedMedia):
        read(item_type, *given_parts)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_form_are_refused(data: bytes) -> None:
    with suppress(InvalidInput):
        assert encode_form(decode_form(data))
