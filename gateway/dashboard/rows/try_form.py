"""The form of a page to try a model, made from the model's schema, and the same call as commands. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.gateway.asgi.negotiation import JSON, OCTETS
from penstock.gateway.dashboard.rows.machine_rows import sample_of
from penstock.inputs.form import choices_of, form_fields, is_file_schema

WHOLE = "data"


@dataclass(frozen=True, slots=True)
class Field:
    """`kind` is file, text, number, choice or json; `sample` is JSON, or the name of a file. `accept`: its media types."""

    name: str
    kind: str
    sample: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    about: str = ""
    accept: str = ""


def try_fields(schema: Mapping[str, Any] | None, accepts: Sequence[str]) -> list[Field]:
    """The fields of a form for this schema: those of its object, or one for the whole input."""
    root = dict(schema or {})
    fields = form_fields(root) if schema and JSON in accepts else None
    if fields is None or not fields.named:
        return [_whole(root, accepts)]
    required = {name for form in choices_of(root, root) for name in form.get("required", ())}
    return [_field(root, name, own, is_required=name in required) for name, own in fields.named.items()]


def _whole(root: dict[str, Any], accepts: Sequence[str]) -> Field:
    if is_file_schema(root) or not {JSON, "*/*"} & set(accepts):
        kinds = [media for media in accepts if media not in (JSON, "*/*")]
        is_text = kinds and all(media.startswith("text/") for media in kinds)
        return Field(WHOLE, "text" if is_text else "file", "text" if is_text else "FILE", True, accept=",".join(kinds))
    return Field(WHOLE, "json", sample_of(root), True)


def _field(root: dict[str, Any], name: str, own: Any, *, is_required: bool) -> Field:
    choices = list(choices_of(root, own))
    about = str(own.get("description", ""))[:200] if isinstance(own, Mapping) else ""
    sample = sample_of({"$defs": root.get("$defs", {}), **own} if isinstance(own, Mapping) else {})
    file = next((one for one in choices if one.get("contentEncoding") == "base64"), None)
    if file is not None:
        accept = str(file.get("contentMediaType", "")).removeprefix(OCTETS)
        return Field(name, "file", "FILE", is_required, about=about, accept=accept)
    words = [value for one in choices for value in one.get("enum", ())]
    if words and all(isinstance(word, str) for word in words):
        return Field(name, "choice", sample, is_required, tuple(words), about)
    kinds = {kind for one in choices for kind in _kinds(one)} - {"null"}
    if kinds == {"boolean"}:
        return Field(name, "choice", sample, is_required, ("true", "false"), about)
    kind = "number" if kinds and kinds <= {"integer", "number"} else "text" if kinds == {"string"} else "json"
    return Field(name, kind, sample, is_required, about=about)


def _kinds(choice: Mapping[str, Any]) -> list[str]:
    kind = choice.get("type", [])
    return kind if isinstance(kind, list) else [kind]


def curl_of(address: str, fields: Sequence[Field], *, keyed: bool) -> str:
    """The command for a prediction with the fields' samples; `address`: of the model's predictions."""
    key = ' -H "authorization: Bearer $PENSTOCK_API_KEY"' if keyed else ""
    if any(field.kind == "file" for field in fields):
        parts = [f"-F {shlex.quote(f'{field.name}={_form_value(field)}')}" for field in fields if _is_sent(field)]
        return f"curl -s {address}{key} {' '.join(parts)}"
    if fields[0].name == WHOLE and fields[0].kind == "text":
        return f"curl -s {address}{key} -H 'content-type: {fields[0].accept.split(',')[0]}' --data-binary {fields[0].sample}"
    return f"curl -s {address}{key} -H 'content-type: application/json' -d {shlex.quote(json.dumps(_value(fields)))}"


def python_of(base_url: str, model: str, fields: Sequence[Field], *, keyed: bool) -> str:
    """As `curl_of`, in Python. The client takes its key from PENSTOCK_API_KEY."""
    has_file = any(field.kind == "file" for field in fields)
    head = ["from pathlib import Path", ""] if has_file else []
    key = "  # its key is in PENSTOCK_API_KEY" if keyed else ""
    return "\n".join(
        [
            *head,
            "from penstock import Client",
            "",
            f"with Client({base_url!r}) as client:{key}",
            f"    print(client.submit({model!r}, {_literal(fields)}).result())",
        ]
    )


def _is_sent(field: Field) -> bool:
    return field.required or field.kind == "file"


def _sent(fields: Sequence[Field]) -> list[Field]:
    return [field for field in fields if _is_sent(field)] or list(fields[:3])


def _value(fields: Sequence[Field]) -> Any:
    if fields[0].name == WHOLE and len(fields) == 1:
        return json.loads(fields[0].sample)
    return {field.name: json.loads(field.sample) for field in _sent(fields)}


def _form_value(field: Field) -> str:
    if field.kind == "file":
        return f"@{field.sample}"
    value = json.loads(field.sample)
    return value if isinstance(value, str) else field.sample


def _literal(fields: Sequence[Field]) -> str:
    if fields[0].name == WHOLE and len(fields) == 1:
        return _python(fields[0])
    return "{" + ", ".join(f"{field.name!r}: {_python(field)}" for field in _sent(fields)) + "}"


def _python(field: Field) -> str:
    if field.kind == "file":
        return f"Path({field.sample!r})"
    is_plain_text = field.kind == "text" and field.name == WHOLE
    return repr(field.sample if is_plain_text else json.loads(field.sample))
