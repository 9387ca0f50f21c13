"""The settings as rows of a table: key, environment variable, type and default, read from the classes of the settings."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.model_spec import Variable
from penstock.settings import layers
from penstock.settings.extension_tables import is_list, table_class, table_parts
from penstock.settings.keys import Whole
from penstock.settings.models import JobFields, ServedFields
from penstock.settings.tables import Settings

# What the reader writes in place of a name of his own, by the table that it names.
NAMED = ("models", "pipelines", "workflows")
# Lists of tables: they come from a file, or as a whole from one variable.
LISTS = ("keys", "pipelines.NAME.stages")
# What a model and a pipeline have alike is told of models. What management writes into a table is no setting.
SHARED = frozenset(JobFields.model_fields) | frozenset(ServedFields.model_fields)
WRITTEN = frozenset({"registered_from"})
KIB = 1024
# Filled in by the place where the settings file lies.
LOCATED = {"store.state_dir": "`.penstock` beside the settings file"}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One key of the table `table` (`gateway`, `models.NAME`); `variable` is empty where the environment cannot set it."""

    table: str
    key: str
    variable: str
    type: str
    default: str


def setting_rows() -> list[SettingRow]:
    own = [row for name, field in Settings.model_fields.items() for row in _of_section(name, field.annotation)]
    return own + [row for name in table_parts() for row in _of_section(name, _class_of(name))]


def _class_of(name: str) -> Any:
    """The type of an extension's table, as a field would have it."""
    kind = table_class(name)
    root = kind.model_fields.get("root") if kind else None
    return root.annotation if root else kind


def _of_section(name: str, annotation: Any) -> Iterator[SettingRow]:
    table = f"{name}.NAME" if name in NAMED else name
    yield from _rows(table, _table_class(annotation))


def _rows(table: str, settings: type[BaseModel]) -> Iterator[SettingRow]:
    told = WRITTEN | (SHARED if table == "pipelines.NAME" else frozenset())
    for key, field in settings.model_fields.items():
        if key in told:
            continue
        path = f"{table}.{key}"
        yield SettingRow(table, key, _variable(path, field), type_word(field.annotation, field.metadata), _default(path, field))
        if path in LISTS:
            yield from _rows(path, _table_class(field.annotation))


def _table_class(annotation: Any) -> type[BaseModel]:
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, Whole):
            return note.of()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_table_class(part) for part in reversed(get_args(annotation)) if _is_table(part))


def _is_table(annotation: Any) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, BaseModel)
    return any(_is_table(part) for part in get_args(annotation))


def _variable(path: str, field: FieldInfo) -> str:
    """The environment variable. Lists of a model are written in its table, which PENSTOCK_MODELS holds as JSON."""
    first, *rest = path.split(".")
    separated = (*layers._TEXT_LISTS, *layers._FOLDER_LISTS)
    is_separated = (first, *rest) in separated or (first in table_parts() and is_list((first, *rest)))
    is_many = get_origin(_bare(field.annotation)) is tuple
    if path.startswith(LISTS) or _is_table(field.annotation) or (is_many and not is_separated):
        return ""
    return layers.PREFIX + layers.NESTING.join((first, *rest)).upper()


def _bare(annotation: Any) -> Any:
    """The type without `Annotated` and without `None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        some = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(some[0]) if len(some) == 1 else annotation
    return annotation


def _constraints(annotation: Any, metadata: list[Any]) -> list[Any]:
    found = list(metadata)
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Annotated:
            for note in get_args(part)[1:]:
                found += note.metadata if isinstance(note, FieldInfo) else [note]
    return found


def type_word(annotation: Any, metadata: list[Any]) -> str:
    bare = _bare(annotation)
    if get_origin(bare) is Literal:
        return _one_of([value for value in get_args(bare) if value != ""])
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return _one_of(list(bare))
    if get_origin(bare) is tuple:
        inner = [part for part in get_args(bare) if part is not Ellipsis]
        return f"list of {_plural(type_word(inner[0], []))}" if len(inner) == 1 else f"list of {len(inner)} numbers"
    if get_origin(bare) is dict:
        return "table"
    if get_origin(bare) in (Union, types.UnionType):
        return " or ".join(type_word(part, []) for part in get_args(bare))
    word = _simple(bare)
    return f"{word}{_bounds(_constraints(annotation, metadata))}" if word in ("integer", "number") else word


def _simple(bare: Any) -> str:
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return "table"
    words = {bool: "`true` or `false`", int: "integer", float: "number", str: "text", Path: "path", Variable: "text or table"}
    # A moment with an offset is pydantic's own type.
    return words.get(bare, "moment")


def _plural(word: str) -> str:
    return {"text": "texts", "path": "paths", "table": "tables"}.get(word, word.replace("integer", "integers"))


def _one_of(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _bounds(constraints: list[Any]) -> str:
    low = next((f" ≥ {note.ge}" for note in constraints if hasattr(note, "ge")), "")
    low = next((f" > {note.gt}" for note in constraints if hasattr(note, "gt")), low)
    high = next((note.le for note in constraints if hasattr(note, "le")), None)
    return low if high is None else f", {low.removeprefix(' ≥ ')} to {high}"


def _default(path: str, field: FieldInfo) -> str:
    if path in LOCATED:
        return LOCATED[path]
    if field.is_required():
        return "must be set"
    value = field.default if field.default is not PydanticUndefined else None
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, tuple):
        return f"`[{', '.join(_in_toml(part) for part in value)}]`"
    return f"`{_in_toml(value)}`{_in_words(path, value)}"


def _in_toml(value: Any) -> str:
    if isinstance(value, (int, float)):
        return f"{value:g}" if value < KIB else str(int(value))
    return str(value) if isinstance(value, StrEnum) else f'"{value}"'


def _in_words(path: str, value: Any) -> str:
    """A size or a duration that is hard to read in bytes or seconds."""
    units: tuple[tuple[int, str], ...] = ()
    if path.endswith("_bytes"):
        units = ((KIB**3, "GiB"), (KIB**2, "MiB"), (KIB, "KiB"))
    elif path.endswith("_s"):
        units = ((86_400, "days"), (3_600, "h"), (60, "min"))
    for size, unit in units:
        if value >= 2 * size or (value >= size and unit in ("h", "GiB", "MiB", "KiB")):
            return f" ({value / size:g} {unit})"
    return ""
