from __future__ import annotations

import time
from typing import Any

import jsonschema_rs
import pytest

from penstock.errors import BadRequest, InvalidInput
from penstock.gateway.asgi.bodies import (
    UNBUILT,
    WHOLE_PARSE_BYTES,
    check_schema,
    is_cheap_to_build,
    is_deeper_than,
    json_pointer,
    parse_json,
)

LARGE = b'{"pad":"' + b"x" * WHOLE_PARSE_BYTES + b'"}'


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_a_small_body_is_parsed_whole() -> None:
    assert parse_json(b'{"x": 4}', max_depth=64) == {"x": 4}


def test_a_large_body_is_checked_without_being_built() -> None:
    assert parse_json(LARGE, max_depth=64) is UNBUILT


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"NaN", b"[1,]", b"{} x", b"01", b'"\xff"', b"1e999", b"1" * 5_000, b"[" * 5_000_000, LARGE[:-1], LARGE + b"x"],
    ids=["empty", "open", "nan", "comma", "trailing", "octal", "utf8", "infinite", "huge", "deep", "large-open", "large-more"],
)
def test_what_is_not_json_is_refused_quickly(body: bytes) -> None:
    started = time.process_time()
    with pytest.raises(BadRequest):
        parse_json(body, max_depth=64)
    # An idle machine takes less than a tenth of that; on a busy one, a second of the processor is worth less.
    assert time.process_time() - started < 0.5


def test_a_large_body_must_be_utf8() -> None:
    with pytest.raises(BadRequest, match="utf-8"):
        parse_json(LARGE.replace(b"xx", b"\xff\xff"), max_depth=64)


def test_nesting_up_to_the_limit_is_taken_and_one_more_is_not() -> None:
    assert parse_json(nested(64), max_depth=64)
    with pytest.raises(BadRequest, match="deeper than 64"):
        parse_json(nested(65), max_depth=64)


@pytest.mark.parametrize(
    ("body", "deep"),
    [
        (b"[" + b"[]," * 1_000 + b"[]]", False),
        (b'["' + b"[" * 1_000 + b'"]', False),
        (b'["\\"' + b"[" * 1_000 + b'\\\\", "]"]', False),
        (b"[" + (nested(4) + b",") * 100 + nested(66) + b"]", True),
        (b'{"a":' * 70 + b"1" + b"}" * 70, True),
        (b'[{"a":' * 32 + b"1" + b"}]" * 32, False),
    ],
    ids=["wide", "in-a-string", "escaped", "one-deep", "objects", "mixed"],
)
def test_depth_counts_brackets_outside_strings(body: bytes, deep: bool) -> None:
    assert is_deeper_than(body, 64) is deep


@pytest.mark.parametrize(("depth", "limit"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 3), (4, 4), (5, 4), (9, 8)])
def test_depth_is_exact_near_small_limits(depth: int, limit: int) -> None:
    assert is_deeper_than(nested(depth), limit) is (depth > limit)


def test_a_body_of_half_a_million_values_is_left_to_the_worker() -> None:
    assert is_cheap_to_build(b"[1,2]")
    assert not is_cheap_to_build(b"1," * 500_000)


def checked(value: object, schema: dict[str, Any]) -> None:
    check_schema(value, jsonschema_rs.validator_for(schema), schema)


def test_a_schema_fault_is_told_with_a_json_pointer() -> None:
    schema = {"properties": {"a/b": {"items": {"type": "number"}}}}
    checked({"a/b": [1]}, schema)
    with pytest.raises(InvalidInput) as refused:
        checked({"a/b": [1, "two"]}, schema)
    assert refused.value.errors == [{"pointer": "/a~1b/1", "detail": '"two" is not of type "number"'}]


def test_at_most_ten_faults_are_told() -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(["x"] * 100, {"items": {"type": "number"}})
    assert len(refused.value.errors) == 10


def test_the_empty_pointer_means_the_whole_document() -> None:
    assert json_pointer([]) == ""


NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
OBJECT = {"type": "object", "properties": {"x": NUMBERS}, "required": ["x"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("value", "pointer", "words"),
    [
        ([1, 2], "", "x has shape [2], the model takes [3]"),
        ([1, "a", 3], "/1", '"a" is not of type "number"'),
        ({"x": [1]}, "/x", "x has shape [1], the model takes [3]"),
        ({"y": 1}, "", "Additional properties are not allowed ('y' was unexpected)"),
        ("a", "", '"a" is not of type "object", or "a" is not of type "array"'),
    ],
)
def test_of_two_forms_the_one_that_was_meant_is_told(value: object, pointer: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(value, {"anyOf": [OBJECT, NUMBERS]})
    assert {"pointer": pointer, "detail": words} in refused.value.errors


def test_what_a_long_input_violates_is_still_told() -> None:
    with pytest.raises(InvalidInput) as refused:
        checked([0.123] * 1_000, NUMBERS | {"uniqueItems": True, "maxItems": 1_000})
    (fault,) = refused.value.errors
    assert fault["detail"].endswith("has non-unique elements")
    assert len(fault["detail"]) <= 200


def array(*sizes: int | None) -> dict[str, Any]:
    """Return the schema of a model file's input with this shape; None is a free dimension."""
    schema: dict[str, Any] = {"type": "number"}
    for size in reversed(sizes):
        bounds = {} if size is None else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return schema


def zeros(*sizes: int) -> Any:
    return [zeros(*sizes[1:]) for _ in range(sizes[0])] if sizes else 0


IMAGE = {"type": "object", "properties": {"image": array(3, 8, 8)}, "required": ["image"], "additionalProperties": False}
IMAGE_OR_BARE = {"anyOf": [IMAGE, array(3, 8, 8)]}
TEXT = {"type": "object", "properties": {"ids": array(None), "mask": array(None, 2)}}


@pytest.mark.parametrize(
    ("value", "schema", "errors"),
    [
        ({"image": zeros(3, 5, 5)}, IMAGE_OR_BARE, {"/image": "image has shape [3, 5, 5], the model takes [3, 8, 8]"}),
        (zeros(3, 5, 5), IMAGE_OR_BARE, {"": "image has shape [3, 5, 5], the model takes [3, 8, 8]"}),
        (zeros(8, 8), IMAGE_OR_BARE, {"": "image has shape [8, 8], the model takes [3, 8, 8]"}),
        ([], IMAGE_OR_BARE, {"": "image has shape [0], the model takes [3, 8, 8]"}),
        (zeros(2, 3), array(2, None, None), {"": "the input has shape [2, 3], the model takes [2, any, any]"}),
        (
            [zeros(8, 8), zeros(8, 7), zeros(8, 8)],
            IMAGE_OR_BARE,
            {"": "image is not a regular nested list of numbers: its rows differ in length; the model takes [3, 8, 8]"},
        ),
        (
            {"ids": zeros(2, 2), "mask": zeros(2, 3)},
            TEXT,
            {"/ids": "ids has shape [2, 2], the model takes [any]", "/mask": "mask has shape [2, 3], the model takes [any, 2]"},
        ),
    ],
)
def test_an_array_of_another_shape_is_one_fault_that_tells_both_shapes(
    value: object, schema: dict[str, Any], errors: dict[str, str]
) -> None:
    """Regression: for an image of 100 x 100 instead of 224 x 224, the answer listed ten faults, rows of less than 224 items."""
    with pytest.raises(InvalidInput) as refused:
        checked(value, schema)
    assert {error["pointer"]: error["detail"] for error in refused.value.errors} == errors


@pytest.mark.parametrize(
    ("value", "pointer"),
    [({"image": [[["a"] * 8] * 8] * 3}, "/image/0/0/0"), ({"picture": 1}, ""), ({"image": "a"}, "/image")],
)
def test_what_is_wrong_besides_the_shape_is_told_by_the_schema(value: object, pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(value, IMAGE_OR_BARE)
    assert refused.value.errors[0]["pointer"] == pointer
    assert "has shape" not in str(refused.value.errors)
