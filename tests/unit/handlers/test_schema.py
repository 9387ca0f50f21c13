from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel

from penstock import Media
from penstock.errors import HandlerLoadError, InvalidInput
from penstock.handlers.contract import Failure, Handler
from penstock.handlers.schema import (
    answer_types,
    function_types,
    handler_types,
    output_media,
    output_schema,
    pointer_of,
    reader_for,
)


@dataclass
class Point:
    x: int
    tags: list[str] | None = None


class Row(msgspec.Struct):
    x: int


class Table(TypedDict):
    rows: list[Point]


class Person(BaseModel):
    name: str
    age: int


class OnlyInference(Handler):
    def inference(self, batch: list[Point], /) -> list[int | Failure]:
        return [point.x for point in batch]


class AllStages(Handler):
    def preprocess(self, inputs: list[bytes], /) -> list[int]:
        return [len(data) for data in inputs]

    def inference(self, batch: list[int], /) -> list[int]:
        return batch

    def postprocess(self, outputs: list[int], /) -> list[Point]:
        return [Point(value) for value in outputs]


class Untyped(Handler):
    def inference(self, batch, /):  # type: ignore[no-untyped-def]
        return batch


class OneItem(Handler):
    def inference(self, batch: Point, /) -> list[int]:  # type: ignore[override]
        return [batch.x]


class ReturnsText(Handler):
    def inference(self, batch: list[int], /) -> str:  # type: ignore[override]
        return str(batch)


def test_the_item_type_is_that_of_the_first_stage_and_the_result_type_that_of_the_last() -> None:
    types = handler_types(AllStages)
    assert (types.input, types.output) == (bytes, Point)


def test_a_handler_with_inference_alone_gives_both_types_and_failure_is_no_output_type() -> None:
    types = handler_types(OnlyInference)
    assert (types.input, types.output) == (Point, int)


def test_a_handler_without_annotations_takes_anything() -> None:
    types = handler_types(Untyped)
    assert (types.input, types.output) == (Any, Any)
    assert reader_for(types.input).schema() is None


def test_a_stage_annotated_with_one_item_is_told_to_write_a_list() -> None:
    with pytest.raises(HandlerLoadError, match=r"OneItem.inference must take a list.*write list\[Point\]"):
        handler_types(OneItem)


def test_a_stage_that_returns_no_list_is_refused_at_load() -> None:
    with pytest.raises(HandlerLoadError, match="must return a list"):
        handler_types(ReturnsText)


def test_functions_of_one_item_and_of_a_list_give_the_same_types() -> None:
    def one(item: Point) -> int:
        return item.x

    def many(items: list[Point]) -> list[int]:
        return [item.x for item in items]

    assert function_types(one, batch=False) == function_types(many, batch=True)


def test_an_annotation_that_cannot_be_looked_up_says_where_to_define_it() -> None:
    def bad(item: Missing) -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    with pytest.raises(HandlerLoadError, match="top level of the module"):
        function_types(bad, batch=False)


@pytest.mark.parametrize("item_type", [Point, Row, Person])
def test_a_typed_item_becomes_json_schema_and_an_object(item_type: Any) -> None:
    reader = reader_for(item_type)
    schema = reader.schema()
    assert schema is not None
    assert "properties" in str(schema)
    body = b'{"name": "Ada", "age": 36}' if item_type is Person else b'{"x": 4}'
    assert isinstance(reader.from_json(body), item_type)


@pytest.mark.parametrize(
    ("item_type", "body", "pointer"),
    [
        (Point, b'{"x": "4"}', "/x"),
        (Point, b'{"x": 4, "tags": ["a", 5]}', "/tags/1"),
        (Table, b'{"rows": [{"x": 1}, {"x": null}]}', "/rows/1/x"),
        (dict[str, Point], b'{"a": {"x": "b"}}', ""),
        (Point, b"{}", ""),
        (Point, b"{", ""),
        (Point, b"\xff\xfe", ""),
        (Person, b'{"name": "Ada", "age": "old"}', "/age"),
        (list[Person], b'[{"name": "Ada", "age": 1}, {"age": 1}]', "/1/name"),
        (Person, b"{", ""),
    ],
)
def test_a_misfit_names_the_place(item_type: Any, body: bytes, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        reader_for(item_type).from_json(body)
    assert caught.value.errors[0]["pointer"] == pointer
    assert caught.value.errors[0]["detail"] in caught.value.message


def test_every_fault_a_pydantic_model_finds_is_listed() -> None:
    with pytest.raises(InvalidInput) as caught:
        reader_for(Person).from_json(b"{}")
    assert [fault["pointer"] for fault in caught.value.errors] == ["/name", "/age"]


def test_nesting_beyond_reason_is_an_input_error() -> None:
    with pytest.raises(InvalidInput, match="too deeply"):
        reader_for(Any).from_json(b"[" * 200_000 + b"]" * 200_000)


def test_pointers_escape_what_json_pointer_reserves() -> None:
    assert pointer_of("$.rows[3].x") == "/rows/3/x"
    assert pointer_of("$.a/b~c") == "/a~1b~0c"
    assert pointer_of("$[...].x") == ""


def test_array_inputs_are_refused_at_load_with_what_to_write_instead() -> None:
    with pytest.raises(HandlerLoadError, match="build arrays inside preprocess"):
        reader_for(NDArray[np.float32])


def test_array_outputs_have_no_schema_and_are_no_error() -> None:
    assert output_schema(np.ndarray) is None
    assert output_schema(list[float]) == {"type": "array", "items": {"type": "number"}}


def test_the_return_annotation_may_name_a_media_type() -> None:
    def drawn(x: int) -> Annotated[bytes, "image/jpeg"] | Failure: ...  # type: ignore[empty-body]

    class Speech(Handler):
        def inference(self, batch: list[str], /) -> list[Annotated[bytes, "audio/wav"]]:
            return [b""] * len(batch)

    for types, media in ((function_types(drawn, batch=False), "image/jpeg"), (handler_types(Speech), "audio/wav")):
        assert output_media(types.output) == media
        assert output_schema(types.output) is None
    assert output_media(Annotated[int, msgspec.Meta(ge=0), "a note"]) == ""
    assert output_media(bytes) == ""


def test_a_media_type_that_no_output_can_have_fails_the_load() -> None:
    with pytest.raises(HandlerLoadError, match="names the media type 'image/png; filename=a'"):
        output_media(Annotated[bytes, "image/png; filename=a"])


@pytest.mark.parametrize(
    ("made", "media"),
    [
        (Annotated[bytes, "audio/wav"], ("audio/wav",)),
        (Annotated[str, "text/csv; charset=utf-8"], ("text/csv",)),
        (bytes, ("application/octet-stream",)),
        (Image.Image, ("image/png",)),
        (Media, ()),
        (Any, ()),
        (dict[str, Media], ()),
        (dict[str, int], ("application/json",)),
    ],
)
def test_the_return_annotation_says_which_media_types_outputs_have(made: Any, media: tuple[str, ...]) -> None:
    assert answer_types(made) == media
