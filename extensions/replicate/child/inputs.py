"""The input of a predictor: the parameters of its `predict` as a type that is checked, and as the values that it gets."""

from __future__ import annotations

import inspect
import io
import mimetypes
import pathlib
import re
import typing
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from types import UnionType
from typing import Annotated, Any, Literal, Union

import msgspec

from penstock.errors import HandlerLoadError
from penstock.extensions.replicate.child.surface import REQUIRED, InputField, OpenedFile, Path, Secret
from penstock.inputs.file import File

_BOUNDS = ("ge", "le", "min_length", "max_length")
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}")


@dataclass(frozen=True, slots=True)
class PredictorInput:
    """`kind` is the type that an input is read into; `made` gives each of its fields the form that `predict` takes."""

    kind: type
    made: dict[str, Callable[[Any, ExitStack], Any]]

    def arguments(self, given: Any, files: ExitStack) -> dict[str, Any]:
        """The arguments of one call of `predict`. Files exist until `files` is closed."""
        return {name: make(getattr(given, name), files) for name, make in self.made.items()}


def input_of(predict: Callable[..., Any], where: str) -> PredictorInput:
    """Raises `HandlerLoadError` for a parameter that no input can be read into, and for a default that does not fit."""
    hints = typing.get_type_hints(predict)
    parameters = [own for own in inspect.signature(predict).parameters.values() if own.name != "self"]
    fields, made = [], {}
    for order, own in enumerate(parameters):
        if own.kind in (own.VAR_POSITIONAL, own.VAR_KEYWORD) or own.name not in hints:
            raise HandlerLoadError(f"{where}: its parameter {own.name!r} needs a type, as in `{own.name}: str = Input(...)`")
        said = own.default if isinstance(own.default, InputField) else InputField(_default(own))
        fields.append(_field(own.name, hints[own.name], said, order, where))
        made[own.name] = _maker(hints[own.name])
    # Cog refuses a member that the predictor does not have, too.
    kind = msgspec.defstruct("Input", fields, kw_only=True, forbid_unknown_fields=True)
    _check_defaults(kind, where)
    return PredictorInput(kind, made)


def _default(parameter: inspect.Parameter) -> Any:
    return REQUIRED if parameter.default is parameter.empty else parameter.default


def _field(name: str, hint: Any, said: InputField, order: int, where: str) -> Any:
    kind: Any = _bounded(hint, said, f"{where}: its parameter {name!r}")
    if said.default is None and hint is not Any:
        kind = kind | None
    extra: dict[str, Any] = {"x-order": order} | ({"deprecated": True} if said.deprecated else {})
    note = msgspec.Meta(title=name.replace("_", " ").title(), description=said.description, extra_json_schema=extra)
    typed: Any = Annotated[kind, note]
    if said.default is REQUIRED:
        return name, typed
    if isinstance(said.default, (list, dict, set)):
        return name, typed, msgspec.field(default_factory=lambda: type(said.default)(said.default))
    return name, typed, said.default


def _bounded(hint: Any, said: InputField, where: str) -> Any:
    """The type that the member of the input has, with what `Input` says of its values."""
    if said.choices is not None:
        if not said.choices or not all(type(choice) in (str, int) for choice in said.choices):
            raise HandlerLoadError(f"{where}: choices are texts or whole numbers, at least one")
        return Literal[tuple(said.choices)]
    kind = _read_as(hint)
    bounds = {name: getattr(said, name) for name in _BOUNDS if getattr(said, name) is not None}
    if said.regex is not None:
        bounds["pattern"] = said.regex
    if not bounds:
        return kind
    optional = typing.get_origin(kind) in (Union, UnionType)
    bare = Union[tuple(part for part in typing.get_args(kind) if part is not type(None))] if optional else kind  # noqa: UP007
    limited: Any = Annotated[bare, msgspec.Meta(**bounds)]
    try:
        msgspec.json.Decoder(limited)
    except TypeError as error:
        raise HandlerLoadError(f"{where}: {error}") from error
    return limited | None if optional else limited


def _read_as(hint: Any) -> Any:
    """The annotation, with types that can be read from JSON in place of Cog's own."""
    if isinstance(hint, type) and not typing.get_args(hint):
        if issubclass(hint, (pathlib.Path, io.IOBase)):
            return File
        return str if hint is Secret else hint
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if not inner or origin is Literal:
        return hint
    read = tuple(map(_read_as, inner))
    return Union[read] if origin in (Union, UnionType) else origin[read]  # noqa: UP007


def _maker(hint: Any) -> Callable[[Any, ExitStack], Any]:
    if typing.get_origin(hint) is list and typing.get_args(hint):
        each = _maker(typing.get_args(hint)[0])
        return lambda value, files: value if value is None else [each(one, files) for one in value]
    kinds = [part for part in (hint, *typing.get_args(hint)) if isinstance(part, type)]
    if any(issubclass(kind, pathlib.Path) for kind in kinds):
        return _path
    if any(issubclass(kind, io.IOBase) for kind in kinds):
        return _open_file
    return _secret if Secret in kinds else lambda value, files: value


def _path(value: Any, files: ExitStack) -> Any:
    if not isinstance(value, File):
        # A default that the predictor itself names.
        return value if value is None else Path(value)
    path = Path(files.enter_context(TemporaryDirectory(prefix="penstock-input-")), _name(value))
    path.write_bytes(value)
    return path


def _name(file: File) -> str:
    """A name within the folder, with the ending of the sender's own: some libraries choose a reader by it."""
    ending = pathlib.PurePosixPath(file.filename.replace("\\", "/")).suffix
    guessed = mimetypes.guess_extension(file.content_type.partition(";")[0].strip()) or ""
    return "input" + (ending.lower() if _ENDING.fullmatch(ending) else guessed)


def _open_file(value: Any, files: ExitStack) -> Any:
    if not isinstance(value, File):
        return value
    opened = files.enter_context(OpenedFile(value))
    opened.name = value.filename
    return opened


def _secret(value: Any, files: ExitStack) -> Any:
    return Secret(value) if isinstance(value, str) else value


def _check_defaults(kind: type, where: str) -> None:
    for name, value in _defaults(kind):
        if isinstance(value, (pathlib.Path, Secret)):
            continue
        field = next(own for own in msgspec.structs.fields(kind) if own.name == name)
        try:
            msgspec.convert(value, field.type, dec_hook=_no_file)
        except msgspec.ValidationError as error:
            raise HandlerLoadError(f"{where}: the default of {name!r} is no value that it takes: {error}") from error


def _defaults(kind: type) -> list[tuple[str, Any]]:
    plain = [(own.name, own.default) for own in msgspec.structs.fields(kind) if own.default is not msgspec.NODEFAULT]
    made = [own for own in msgspec.structs.fields(kind) if own.default_factory is not msgspec.NODEFAULT]
    return plain + [(own.name, own.default_factory()) for own in made]


def _no_file(kind: type, value: Any) -> Any:
    raise ValueError("a file has no default but None or a Path")
