"""`@penstock.model`: a plain function becomes a model, for one item or for a list of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from penstock.handlers.contract import Failure, Handler, failure_of
from penstock.handlers.schema import ItemTypes, function_types

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Declared:
    """What model code says of itself before anything is loaded; None or empty where it says nothing."""

    name: str = ""
    version: str = ""
    max_batch_size: int | None = None
    max_wait_s: float | None = None
    accepts: tuple[str, ...] | None = None
    description: str = ""


class ModelFunction(Generic[P, R]):
    """A function that can be served. Calling it calls the function, so it can be tested like one."""

    __name__: str

    def __init__(self, function: Callable[P, R], *, declared: Declared, batch: bool, sample: Any = None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.declared = declared
        self.batch = batch
        self.sample = sample

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def types(self) -> ItemTypes:
        return function_types(self.function, batch=self.batch)

    def handler(self) -> Handler:
        """A fresh handler around the function."""
        handler = BatchFunction(self.function) if self.batch else ItemFunction(self.function)
        handler.sample = self.sample
        return handler


class BatchFunction(Handler):
    """A function of a list as a handler."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def inference(self, batch: list[Any], /) -> list[Any]:
        outputs: list[Any] = self._function(batch)
        return outputs


class ItemFunction(Handler):
    """A function of one item as a handler: an item that raises fails alone, at the cost of no second call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def inference(self, batch: list[Any], /) -> list[Any]:
        return [self._one(item) for item in batch]

    def _one(self, item: Any) -> Any | Failure:
        try:
            return self._function(item)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return failure_of(error)


@overload
def model(function: Callable[P, R], /) -> ModelFunction[P, R]: ...


@overload
def model(
    function: None = None,
    /,
    *,
    batch: bool = ...,
    name: str = ...,
    version: str = ...,
    max_batch_size: int | None = ...,
    max_wait_s: float | None = ...,
    accepts: tuple[str, ...] | None = ...,
    sample: Any = ...,
) -> Callable[[Callable[P, R]], ModelFunction[P, R]]: ...


def model(
    function: Callable[P, R] | None = None,
    /,
    *,
    batch: bool = False,
    name: str = "",
    version: str = "",
    max_batch_size: int | None = None,
    max_wait_s: float | None = None,
    accepts: tuple[str, ...] | None = None,
    sample: Any = None,
) -> ModelFunction[P, R] | Callable[[Callable[P, R]], ModelFunction[P, R]]:
    """Mark a function as a model: of one item, or of a list of items with `batch=True`.

    `max_batch_size` and `max_wait_s` (seconds) are defaults that a `penstock.toml` may override; `sample` is one item to warm
    up with.
    """

    def mark(target: Callable[P, R]) -> ModelFunction[P, R]:
        declared = Declared(name, version, max_batch_size, max_wait_s, accepts, _summary(target))
        return ModelFunction(target, declared=declared, batch=batch, sample=sample)

    return mark if function is None else mark(function)


def _summary(target: object) -> str:
    return (getattr(target, "__doc__", None) or "").strip()


def declared_by(handler: type[Handler]) -> Declared:
    """The same, from the attributes of a Handler class; its docstring only where the class has one of its own."""
    return Declared(
        max_batch_size=handler.max_batch_size,
        max_wait_s=handler.max_wait_s,
        accepts=handler.accepts,
        description=(handler.__dict__.get("__doc__") or "").strip(),
    )
