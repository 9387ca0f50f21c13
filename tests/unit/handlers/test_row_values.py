"""Rows as plain values become what the same inputs become as JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from penstock.errors import InvalidInput
from penstock.handlers.schema import Reader, reader_for


@dataclass
class Point:
    x: int
    y: float = 0.0


class Strict(BaseModel, strict=True):
    at: datetime
    x: int


CASES = [
    (int, "1.0"),
    (float, "1"),
    (int, str(2**70)),
    (str, "1"),
    (dict[int, str], '{"1": "a"}'),
    (dict[str, bytes], '{"a": "aGk="}'),
    (datetime, '"2020-01-01T00:00:00Z"'),
    (UUID, '"12345678-1234-5678-1234-567812345678"'),
    (Decimal, "1.5"),
    (tuple[int, str], '[1, "a"]'),
    (Literal["a"], '"b"'),
    (Point, '{"x": 1}'),
    (list[Point], '[{"x": 1}, {"x": true}]'),
    (msgspec.Raw, '{"a":1}'),
    (Strict, '{"at": "2020-01-01T00:00:00Z", "x": 1}'),
    (Strict, '{"at": "2020-01-01T00:00:00Z", "x": "1"}'),
    (Any, '{"a": [1, null]}'),
]


def outcome_of(read: Any, given: Any) -> Any:
    try:
        made = read(given)
    except InvalidInput as error:
        return error.message
    return bytes(made) if isinstance(made, msgspec.Raw) else made


@pytest.mark.parametrize(("item_type", "text"), CASES)
def test_a_row_is_read_as_its_json_text_would_be(item_type: Any, text: str) -> None:
    reader: Reader = reader_for(item_type)
    wanted = outcome_of(reader.from_json, text.encode())
    assert outcome_of(reader.from_value, json.loads(text)) == wanted


@pytest.mark.parametrize(("item_type", "text"), CASES)
def test_many_rows_are_read_at_once_or_refused(item_type: Any, text: str) -> None:
    reader = reader_for(item_type)
    if item_type is msgspec.Raw:
        return
    wanted = outcome_of(reader.from_json, text.encode())
    found = outcome_of(reader.from_values, [json.loads(text)] * 3)
    if isinstance(wanted, str) and wanted.startswith("the input"):
        assert isinstance(found, str)
    else:
        assert found == [wanted] * 3
