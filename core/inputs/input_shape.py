"""What a model's input schema says of its inputs: their JSON types, and the fields of objects; and
whether an array has a shape that the model takes. Pure.

Schemas of dataclasses, Structs, TypedDicts and pydantic models name their parts by `$ref` and their choices by `anyOf`. Both
are followed here. Where a schema says nothing, or is nested too deeply, anything is assumed to fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from penstock.errors import InvalidInput

_DEPTH = 16
# Smallest and largest size of each dimension; None: no largest.
Bounds = Sequence[tuple[int, int | None]]
_CHOICES = ("anyOf", "oneOf")
_TYPES: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
_ANY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """One form of object that a model takes: the JSON types by field. `others`: the types of further fields, None if they are
    not mentioned; `closed`: further fields are refused.
    """

    fields: Mapping[str, frozenset[str]]
    required: frozenset[str] = frozenset()
    others: frozenset[str] | None = None
    closed: bool = False

    def missing(self, given: Collection[str]) -> list[str]:
        return sorted(self.required.difference(given))

    def unknown(self, given: Collection[str]) -> list[str]:
        if not self.fields and not self.closed:
            return []
        return [] if self.others is not None else [name for name in given if name not in self.fields]


@dataclass(frozen=True, slots=True)
class InputShape:
    """`types`: the JSON types of an input, empty if the schema leaves them open. `objects`: the forms of its objects."""

    types: frozenset[str] = _ANY
    objects: tuple[ObjectForm, ...] = ()

    @property
    def is_scalar(self) -> bool:
        """Whether the model takes values, and none of them is an object."""
        return bool(self.types) and "object" not in self.types

    def types_of(self, field: str) -> frozenset[str]:
        """The JSON types of a field, or of the input itself for ""; empty if the schema leaves them open."""
        if not field:
            return self.types
        return _union(form.fields.get(field, form.others or _ANY) for form in self.objects)

    def check_mapped(self, fields: Collection[str]) -> None:
        """Raises `InvalidInput` for columns mapped to fields that no input of the model has, and for fields left out that every
        input needs: each row of the run would fail.
        """
        if "" in fields:
            return
        if self.is_scalar:
            raise InvalidInput(
                f"the model's input has no fields, and {_named(fields)} is mapped to a column",
                hint="for a column's bare value write --column COLUMN",
            )
        self._check(fields, lambda form: form.unknown(fields), give="write --column FIELD=COLUMN for each of its fields")

    def check_columns(self, columns: Collection[str], name: str) -> None:
        """Raises `InvalidInput` if the rows of the table `name` fit no form of the model's objects."""
        self._check(
            columns,
            lambda form: form.unknown(columns) if form.closed else [],
            give="map columns of other names: --column FIELD=COLUMN",
            of=f"{name}: ",
        )

    def _check(self, given: Collection[str], unknown: Any, *, give: str, of: str = "") -> None:
        if not self.objects or any(not form.missing(given) and not unknown(form) for form in self.objects):
            return
        # The caller most probably meant the form with the fewest faults.
        form = min(self.objects, key=lambda form: len(form.missing(given)) + len(unknown(form)))
        faults = [_unknown_field(name, form) for name in unknown(form)]
        if missing := form.missing(given):
            faults.append(f"no column gives {_named(missing)}, which the model needs")
        raise InvalidInput(f"{of}{'; '.join(faults)}", hint=f"the model's fields are {_named(form.fields)}; {give}")


def shape_of(schema: Mapping[str, Any] | None) -> InputShape:
    """The shape that a JSON Schema describes; without a schema anything fits."""
    forms = list(_forms(schema or {}, schema or {}, 0))
    types = [_types_of_form(form) for form in forms]
    objects = [form for form, kinds in zip(forms, types, strict=True) if not kinds or "object" in kinds]
    return InputShape(_union(types), tuple(_object_form(form, schema or {}) for form in objects))


def _forms(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """The alternatives of a schema, each without references and choices; {} for one that says nothing."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        yield {}
        return
    if "$ref" in schema:
        yield from _forms(_merged(_rest(schema, "$ref"), _resolved(schema["$ref"], root)), root, depth + 1)
        return
    if parts := schema.get("allOf"):
        whole = _rest(schema, "allOf")
        for part in parts:
            whole = _merged(whole, part)
        yield from _forms(whole, root, depth + 1)
        return
    choice = next((key for key in _CHOICES if schema.get(key)), "")
    if not choice:
        yield schema
        return
    for part in schema[choice]:
        yield from _forms(_merged(_rest(schema, choice), part), root, depth + 1)


def _resolved(ref: str, root: Mapping[str, Any]) -> Any:
    schema: Any = root
    for part in ref.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(schema, Mapping) or key not in schema:
            return {}
        schema = schema[key]
    return schema


def _rest(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in (key, "$defs", "definitions", "discriminator")}


def _merged(whole: dict[str, Any], part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        return whole
    merged = {**whole, **part}
    if "properties" in whole and "properties" in part:
        merged["properties"] = {**whole["properties"], **part["properties"]}
    if "required" in whole and "required" in part:
        merged["required"] = [*whole["required"], *part["required"]]
    return merged


def _types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    return _union(_types_of_form(form) for form in _forms(schema, root, 0))


def _types_of_form(form: Mapping[str, Any]) -> frozenset[str]:
    kind = form.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(kind)
    given = form["enum"] if "enum" in form else [form["const"]] if "const" in form else []
    if given:
        return frozenset(_TYPES[type(value)] for value in given)
    return frozenset(("object",)) if "properties" in form else _ANY


def _object_form(form: Mapping[str, Any], root: Mapping[str, Any]) -> ObjectForm:
    others = form.get("additionalProperties")
    return ObjectForm(
        {name: _types_of(each, root) for name, each in (form.get("properties") or {}).items()},
        frozenset(form.get("required") or ()),
        None if others is None or others is False else _types_of(others, root),
        others is False,
    )


def _union(kinds: Any) -> frozenset[str]:
    """All types of the alternatives; empty, which means any, as soon as one of them leaves its types open."""
    alternatives = list(kinds)
    return frozenset[str]().union(*alternatives) if all(alternatives) else _ANY


def _unknown_field(name: str, form: ObjectForm) -> str:
    near = get_close_matches(name, form.fields, n=1)
    return f"the model has no field {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _named(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def shape_fits(shape: Sequence[int], bounds: Bounds) -> bool:
    if len(shape) != len(bounds):
        return False
    return all(low <= got and (high is None or got <= high) for (low, high), got in zip(bounds, shape, strict=True))


def misfit(name: str, shape: Sequence[int], bounds: Bounds) -> str:
    """`image has shape [3, 100, 100], the model takes [3, 224, 224]`."""
    return f"{name} has shape {list(shape)}, the model takes {wanted(bounds)}"


def ragged(name: str) -> str:
    return f"{name} is not a regular nested list of numbers: its rows differ in length"


def wanted(bounds: Bounds) -> str:
    """`[3, any, 1 to 64]`."""
    return f"[{', '.join(_bound(low, high) for low, high in bounds)}]"


def _bound(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more" if low else "any"
    return str(low) if low == high else f"{low} to {high}"
