from __future__ import annotations

from typing import Any

import pytest

from penstock.gateway.dashboard.rows.try_form import Field, curl_of, python_of, try_fields

FILE = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}
JSON = ("application/json",)


def of_object(**properties: Any) -> list[Field]:
    return try_fields({"type": "object", "properties": properties, "required": list(properties)[:1]}, JSON)


def test_each_field_of_an_object_has_the_control_that_fits_it() -> None:
    fields = of_object(
        image=FILE, n={"type": "integer"}, size={"enum": ["s", "l"]}, on={"type": "boolean"}, t={"type": "string"}, x={}
    )
    assert [(field.name, field.kind) for field in fields] == [
        ("image", "file"),
        ("n", "number"),
        ("size", "choice"),
        ("on", "choice"),
        ("t", "text"),
        ("x", "json"),
    ]
    assert [field.required for field in fields] == [True] + [False] * 5
    assert fields[0].accept == "image/png"


@pytest.mark.parametrize(
    ("schema", "accepts", "kind"),
    [
        ({"type": "integer"}, JSON, "json"),
        (None, JSON, "json"),
        (None, ("image/png", "image/jpeg"), "file"),
        (None, ("text/plain",), "text"),
        (FILE, ("*/*",), "file"),
    ],
)
def test_any_other_input_is_one_field(schema: dict[str, Any] | None, accepts: tuple[str, ...], kind: str) -> None:
    [field] = try_fields(schema, accepts)
    assert (field.name, field.kind, field.required) == ("data", kind, True)


def test_quotes_of_a_sample_do_not_end_the_shells_text() -> None:
    fields = of_object(t={"type": "string", "example": "it's $HOME"})
    command = curl_of("http://here/predictions/m", fields, keyed=True)
    assert """-d '{"t": "it'"'"'s $HOME"}'""" in command
    assert "$PENSTOCK_API_KEY" in command


def test_a_file_is_a_path_in_python_and_a_part_in_the_shell() -> None:
    fields = of_object(image=FILE, n={"type": "integer"})
    assert curl_of("http://here/predictions/m", fields, keyed=False).endswith("-F image=@FILE")
    assert "client.submit('m', {'image': Path('FILE')})" in python_of("http://here", "m", fields, keyed=False)
