"""What the code of a predictor imports as `cog`. Only names that work here; every other name is an ImportError that says so."""

# D84: docs/design/runtimes.md
from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from penstock.handlers.load import ImportedModel

T = TypeVar("T", covariant=True)
# What stands for "no default": None is a default of its own.
REQUIRED: Any = ...

NAMES = ("BaseModel", "BasePredictor", "ConcatenateIterator", "File", "Input", "Path", "Secret")


def fill(module: ModuleType) -> None:
    """Make an empty module the `cog` that predictors import."""
    module.__dict__.update(__getattr__=lookup, __all__=[*NAMES])


class BasePredictor:
    """Base class of a predictor: `setup` runs once per process, `predict` once per job."""

    @classmethod
    def __penstock_model__(cls, folder: pathlib.Path) -> ImportedModel:
        """The class as a model whose source lies in `folder` (`penstock.handlers.load`)."""
        # A file may import the name without a predictor of its own.
        from penstock.extensions.replicate.child.predictor import imported_predictor

        return imported_predictor(cls, folder)

    def setup(self, *args: Any, **kwargs: Any) -> Any:
        """Load what `predict` needs."""

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no predict method")


@dataclass(frozen=True, slots=True)
class InputField:
    """What `Input(...)` says of one parameter of `predict`."""

    default: Any = REQUIRED
    description: str | None = None
    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    regex: str | None = None
    choices: Sequence[str | int] | None = None
    deprecated: bool | None = None


def Input(default: Any = REQUIRED, **said: Any) -> Any:  # noqa: N802 - Cog's own name
    """Describes a parameter of `predict`. Raises `TypeError` for a word that `Input` does not have."""
    return InputField(default, **said)


# The class of the platform's own paths, which is what can be subclassed.
class Path(type(pathlib.Path())):  # type: ignore[misc]
    """A file: as an input, one that exists while `predict` runs; as an output, the file that the caller gets."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        return {}


class OpenedFile(io.BytesIO):
    """A file of an input, open for reading. `name` is the name that its sender gave it."""

    name = ""


class Secret:
    """A text that is not shown where it is printed."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret('**********')"

    __str__ = __repr__


class ConcatenateIterator(Iterator[T]):
    """The return annotation of a predictor whose chunks are shown as one text."""


def lookup(name: str) -> Any:
    """A name that the code asks of `cog`. Raises `ImportError` for one that is not there, `AttributeError` for Python's own."""
    if name == "BaseModel":
        # Few predictors return objects, and all others go without this import.
        from pydantic import BaseModel

        return BaseModel
    if name in NAMES:
        return OpenedFile if name == "File" else globals()[name]
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"penstock's cog has no {name}; it has {', '.join(NAMES)} (docs/reference/replicate.md)")
