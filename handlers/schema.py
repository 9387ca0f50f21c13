"""Item types: found in a handler's annotations, turned into JSON Schema, and into readers that name the place of each fault."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Protocol, Union

import msgspec

from penstock.errors import HandlerLoadError, InvalidInput
from penstock.handlers.contract import Failure, Handler, Request
from penstock.outputs.files import is_file_class
from penstock.outputs.media import Media, type_fault

_LISTS = (list, Sequence, Iterable, tuple)
# A stage annotated with one of these returns no list. Any other class is accepted, because it may be an array of rows.
_NOT_LISTS = (int, float, str, bytes, bool, dict, NoneType)
_MISFIT = "the input does not fit the model's schema"
# What `parse_json` raises for a bad input; pydantic's errors are ValueErrors.
REFUSED = (msgspec.MsgspecError, ValueError, RecursionError)
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


@dataclass(frozen=True, slots=True)
class ItemTypes:
    """The type of one input and of one output; `Any` where there is no annotation. `asks`: inputs come as `Request`s."""

    input: Any = Any
    output: Any = Any
    asks: bool = False


class Reader(Protocol):
    """Turns one input into a value of the item type, or raises `InvalidInput` with the place of each fault.

    `parse_json` is the library's own function behind `from_json`, and raises the library's errors (`REFUSED`). `from_value`
    takes the plain value that the JSON text stands for. `from_values` takes many at once, and raises if one of them is bad.
    `from_form` takes the object that a form stands for, with a `File` for each file.
    """

    @property
    def parse_json(self) -> Callable[[bytes], Any]: ...
    def from_json(self, data: bytes, /) -> Any: ...
    def from_text(self, text: str, /) -> Any: ...
    def from_value(self, value: Any, /) -> Any: ...
    def from_values(self, values: list[Any], /) -> list[Any]: ...
    def from_form(self, value: dict[str, Any], /) -> Any: ...
    def schema(self) -> dict[str, Any] | None: ...


def handler_types(handler: type[Handler]) -> ItemTypes:
    """The input type from the annotations of the handler's first stage, the output type from those of its last."""
    first = "inference" if handler.preprocess is Handler.preprocess else "preprocess"
    last = "inference" if handler.postprocess is Handler.postprocess else "postprocess"
    source, target = _hints(getattr(handler, first)), _hints(getattr(handler, last))
    given, asks = _asked_for(_element(_first_parameter(source), f"{handler.__name__}.{first}", "take"))
    # A generator yields parts of an output.
    made = Any if _streams(getattr(handler, last)) else target.get("return", Any)
    return ItemTypes(given, _output_element(made, f"{handler.__name__}.{last}"), asks)


def function_types(function: Callable[..., Any], *, batch: bool) -> ItemTypes:
    """The types of a plain function that takes one item, or with `batch` a list of items."""
    hints = _hints(function)
    given, made = _first_parameter(hints), Any if _streams(function) else hints.get("return", Any)
    given, asks = _asked_for(_element(given, function.__name__, "take") if batch else given)
    return ItemTypes(given, _output_element(made, function.__name__) if batch else _without_failure(made), asks)


def reader_for(item_type: Any) -> Reader:
    """A reader for JSON inputs of `item_type`. Raises `HandlerLoadError` if JSON cannot be read into that type."""
    if _is_pydantic(item_type):
        return PydanticReader(item_type)
    try:
        return MsgspecReader(item_type)
    except TypeError as error:
        raise HandlerLoadError(
            f"inputs of type {_name(item_type)} cannot be read from JSON: {_first_line(error)}. "
            "Annotate the first stage with plain types, a dataclass, a TypedDict, a msgspec Struct or a pydantic model, "
            "and build arrays inside preprocess"
        ) from error


def output_schema(item_type: Any) -> dict[str, Any] | None:
    """JSON Schema of the outputs. None if there is no annotation, or if the type is not one of JSON, as an array is not."""
    if item_type is Any or item_type is bytes or output_media(item_type):
        return None
    try:
        return reader_for(item_type).schema()
    except HandlerLoadError:
        return None


def output_media(item_type: Any) -> str:
    """The media type that the annotation of the outputs names, as in `Annotated[bytes, "audio/wav"]`; empty if it names none.

    Raises `HandlerLoadError` for one that no output can have.
    """
    notes = getattr(item_type, "__metadata__", ())
    media = next((note for note in notes if isinstance(note, str) and "/" in note), "")
    if media and (fault := type_fault(media)):
        raise HandlerLoadError(f"the return annotation names the media type {media[:80]!r}: {fault}")
    return media


def answer_types(item_type: Any) -> tuple[str, ...]:
    """The media types that outputs of this type have; empty: any."""
    if media := output_media(item_type):
        return (media.partition(";")[0].strip(),)
    if item_type is bytes:
        return ("application/octet-stream",)
    if isinstance(item_type, type) and is_file_class(item_type):
        # A `Media` says its type by itself; images are PNG.
        return () if item_type is Media else ("image/png",)
    return () if output_schema(item_type) is None else ("application/json",)


class MsgspecReader:
    """Reads dataclasses, Structs, TypedDicts and plain types. Makes the schema at once, so that a bad type fails at load."""

    def __init__(self, item_type: Any) -> None:
        self._type = item_type
        self._list: Any = list[item_type]
        self._schema = None if item_type is Any else msgspec.json.schema(item_type, schema_hook=_file_schema)
        self.parse_json: Callable[[bytes], Any] = msgspec.json.Decoder(item_type, dec_hook=_file_of).decode

    def from_json(self, data: bytes) -> Any:
        try:
            return self.parse_json(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _msgspec_fault(error) from error
        except RecursionError as error:
            raise InvalidInput("the input is nested too deeply") from error

    def from_text(self, text: str) -> Any:
        try:
            return msgspec.convert(text, self._type, dec_hook=_file_of)
        except msgspec.ValidationError as error:
            raise _msgspec_fault(error) from error

    def from_value(self, value: Any) -> Any:
        try:
            # The keys of a JSON object are text, whatever the item type says.
            return msgspec.convert(value, self._type, str_keys=True, dec_hook=_file_of)
        except (msgspec.ValidationError, RecursionError):
            # Read again as JSON text, so that a fault reads as for any other input. Some types (`msgspec.Raw`) need the text.
            return self.from_json(msgspec.json.encode(value))

    def from_values(self, values: list[Any]) -> list[Any]:
        if self._type is Any:
            return values
        try:
            made: list[Any] = msgspec.convert(values, self._list, str_keys=True, dec_hook=_file_of)
        except msgspec.ValidationError as error:
            raise _msgspec_fault(error) from error
        return made

    def from_form(self, value: dict[str, Any]) -> Any:
        try:
            return msgspec.convert(value, self._type, str_keys=True, dec_hook=_file_of)
        except msgspec.ValidationError as error:
            raise _msgspec_fault(error) from error

    def schema(self) -> dict[str, Any] | None:
        return self._schema


class PydanticReader:
    """Reads pydantic models, and lists or mappings of them. pydantic is imported only here, since the user's code has it."""

    def __init__(self, item_type: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: Any = TypeAdapter(item_type)
        self._many: Any = TypeAdapter(list[item_type])
        self.parse_json: Callable[[bytes], Any] = self._adapter.validate_json

    def from_json(self, data: bytes) -> Any:
        return self._read(self._adapter.validate_json, data)

    def from_text(self, text: str) -> Any:
        return self._read(self._adapter.validate_python, text)

    def from_value(self, value: Any) -> Any:
        # Through JSON, because pydantic is stricter with Python's values, and an input must be judged alike on each way.
        return self._read(self._adapter.validate_json, msgspec.json.encode(value))

    def from_values(self, values: list[Any]) -> list[Any]:
        made: list[Any] = self._read(self._many.validate_json, msgspec.json.encode(values))
        return made

    def from_form(self, value: dict[str, Any]) -> Any:
        from penstock.inputs.file import data_url

        return self._read(self._adapter.validate_json, msgspec.json.encode(value, enc_hook=data_url))

    def schema(self) -> dict[str, Any] | None:
        schema: dict[str, Any] = self._adapter.json_schema()
        return schema

    def _read(self, validate: Callable[[Any], Any], data: Any) -> Any:
        from pydantic import ValidationError

        try:
            return validate(data)
        except ValidationError as error:
            raise _misfit([(_pointer(fault["loc"]), fault["msg"]) for fault in error.errors(include_url=False)]) from error


def _file_schema(kind: type) -> dict[str, Any]:
    """The schema of a type that msgspec does not know: a file's. Raises `NotImplementedError`, msgspec's word for any other."""
    schema: dict[str, Any] = _file_class(kind).schema()
    return schema


def _file_of(kind: type, value: Any) -> Any:
    try:
        return _file_class(kind).read(value)
    except InvalidInput as error:
        # msgspec adds the place of a fault only to a ValueError.
        raise ValueError(error.message) from error


def _file_class(kind: Any) -> Any:
    # No module of ours is imported for models that take no files.
    from penstock.inputs.file import File

    if not (isinstance(kind, type) and issubclass(kind, File)):
        raise NotImplementedError(f"inputs cannot be read into {kind}")
    return kind


def pointer_of(path: str) -> str:
    """The JSON Pointer of a msgspec path: `$.rows[3].x` is `/rows/3/x`. A path through a mapping ends at the mapping."""
    steps: list[str] = []
    for name, index in _PATH_STEP.findall(path):
        if index == "...":
            # In place of a mapping's key msgspec writes dots.
            break
        steps.append(name or index)
    return _pointer(steps)


def _msgspec_fault(error: Exception) -> InvalidInput:
    if not isinstance(error, msgspec.ValidationError):
        return InvalidInput(f"the input is not JSON: {error}", errors=[{"pointer": "", "detail": str(error)}])
    detail, _, path = str(error).partition(" - at `")
    return _misfit([(pointer_of(path.rstrip("`")), detail)])


def _misfit(faults: list[tuple[str, str]]) -> InvalidInput:
    text = "; ".join(f"{detail} at {pointer}" if pointer else detail for pointer, detail in faults)
    errors = [{"pointer": pointer, "detail": detail} for pointer, detail in faults]
    return InvalidInput(f"{_MISFIT}: {text}", errors=errors)


def _pointer(steps: Iterable[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _asked_for(hint: Any) -> tuple[Any, bool]:
    """The type of the input in an annotation of one item, and whether it is to come as a `Request`."""
    if hint is Request:
        return Any, True
    if typing.get_origin(hint) is Request:
        return typing.get_args(hint)[0], True
    return hint, False


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved, in the order of the parameters. `self` is not among them, because it has none."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise HandlerLoadError(
            f"an annotation of {function.__qualname__} cannot be looked up: {error}. "
            "Define or import the name at the top level of the module, outside functions and `if TYPE_CHECKING`"
        ) from error


def _streams(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function)


def _first_parameter(hints: dict[str, Any]) -> Any:
    # The first annotation is that of the first parameter, because a stage has only one.
    return next((hint for name, hint in hints.items() if name != "return"), Any)


def _element(hint: Any, where: str, verb: str) -> Any:
    """X of `list[X]`, `Any` of a bare list. Raises `HandlerLoadError` for what is not a list."""
    if hint is Any:
        return Any
    if (typing.get_origin(hint) or hint) not in _LISTS:
        raise HandlerLoadError(
            f"{where} must {verb} a list of items, but is annotated {_name(hint)}; write list[{_name(hint)}]"
        )
    arguments = typing.get_args(hint)
    return _without_failure(arguments[0]) if arguments else Any


def _output_element(hint: Any, where: str) -> Any:
    bare = typing.get_origin(hint) or hint
    if bare in _LISTS or bare in _NOT_LISTS:
        return _element(hint, where, "return")
    return Any


def _without_failure(hint: Any) -> Any:
    if typing.get_origin(hint) not in (Union, UnionType):
        return Any if hint is Failure else hint
    kept = tuple(part for part in typing.get_args(hint) if part is not Failure)
    return Union[kept]  # noqa: UP007 - built from a tuple


def _is_pydantic(hint: Any) -> bool:
    if isinstance(hint, type) and hasattr(hint, "__pydantic_validator__"):
        return True
    return any(_is_pydantic(part) for part in typing.get_args(hint))


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
