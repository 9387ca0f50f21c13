"""`@penstock.model`: a plain function becomes a model, for one item or for a list of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from penstock.handlers.contract import Context, Failure, Handler, failure_of
from penstock.handlers.running.call import RunningCall
from penstock.handlers.schema import ItemTypes, function_types

P = ParamSpec("P")
R = TypeVar("R")
Cost = Callable[[Any], float]


@dataclass(frozen=True, slots=True)
class ModelAttributes:
    """What model code declares, known before a model is loaded. None or empty: it does not say."""

    name: str = ""
    version: str = ""
    max_batch_size: int | None = None
    max_wait_s: float | None = None
    accepts: tuple[str, ...] | None = None
    description: str = ""


class ModelFunction(Generic[P, R]):
    """A function that can be served. It can still be called, so that it can be tested like any function."""

    __name__: str

    def __init__(
        self,
        function: Callable[P, R],
        *,
        attributes: ModelAttributes,
        batch: bool,
        sample: Any = None,
        cost: Cost | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.attributes = attributes
        self.batch = batch
        self.sample = sample
        self.cost = cost

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def types(self) -> ItemTypes:
        return function_types(self.function, batch=self.batch)

    def handler(self) -> Handler:
        """A new handler that calls the function."""
        is_async = inspect.iscoroutinefunction(self.function)
        kind = CoroutineItems if is_async else _KINDS[self.batch, inspect.isgeneratorfunction(self.function)]
        handler = kind(self.function) if self.cost is None else _costed(kind, self.cost)(self.function)
        handler.sample = self.sample
        return handler


class FunctionHandler(Handler):
    """The handler of a function. A function that has a parameter called `context` gets the context there."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._running: RunningCall | None = None

    @property
    def has_context(self) -> bool:
        """Known once it is initialised."""
        return self._running is not None

    def initialize(self, context: Context, /) -> None:
        if takes_context(self._function):
            self._function, self._running = functools.partial(self._function, context=context), context.running


class BatchFunction(FunctionHandler):
    """The handler of a function that takes a list of items."""

    def inference(self, batch: list[Any], /) -> list[Any]:
        outputs: list[Any] = self._function(batch)
        return outputs


class ItemFunction(FunctionHandler):
    """The handler of a function that takes one item. If the function raises, that item fails alone, and no call is repeated."""

    def inference(self, batch: list[Any], /) -> list[Any]:
        running = self._running
        if running is None:
            return [self._call(item) for item in batch]
        return [self._call_knowing(running, place, item) for place, item in enumerate(batch)]

    def _call_knowing(self, running: RunningCall, place: int, item: Any) -> Any | Failure:
        with running.only(place):
            return self._call(item)

    def _call(self, item: Any) -> Any | Failure:
        try:
            return self._function(item)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return failure_of(error)


class StreamingBatch(FunctionHandler):
    """The handler of a generator function that takes a list of items, and yields a chunk for each."""

    def inference(self, batch: list[Any], /) -> Any:
        return (yield from self._function(batch))


class StreamingItems(FunctionHandler):
    """The handler of a generator function that takes one item."""

    def inference(self, batch: list[Any], /) -> Any:
        # Imported here, because only models that stream need it.
        from penstock.handlers.running.streaming import side_by_side

        return (yield from side_by_side(self._function, batch, self._running))


class CoroutineItems(FunctionHandler):
    """The handler of a coroutine function, which takes one item."""

    async def inference(self, batch: list[Any], /) -> list[Any]:  # type: ignore[override]
        return [await self._function(batch[0])]


# By whether a function takes a list, and whether it yields.
_KINDS: dict[tuple[bool, bool], type[FunctionHandler]] = {
    (True, False): BatchFunction,
    (False, False): ItemFunction,
    (True, True): StreamingBatch,
    (False, True): StreamingItems,
}


def takes_one_item(handler: Handler) -> bool:
    """Whether it is a function that runs the items of a batch one by one."""
    return isinstance(handler, ItemFunction | StreamingItems)


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the function has a parameter called `context`, besides its item or its list of items."""
    return "context" in list(inspect.signature(function).parameters)[1:]


def _costed(kind: type[FunctionHandler], cost: Cost) -> type[FunctionHandler]:
    """The same kind of handler, with this function as its `cost`."""
    return type(kind.__name__, (kind,), {"cost": lambda _self, item: cost(item)})


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
    cost: Cost | None = ...,
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
    cost: Cost | None = None,
) -> ModelFunction[P, R] | Callable[[Callable[P, R]], ModelFunction[P, R]]:
    """Make a function a model. The function takes one item, or with `batch=True` a list of items, and a `Context` in a
    parameter called `context` if it has one.

    `max_batch_size` and `max_wait_s` (seconds) are defaults that a `penstock.toml` may override; `sample` is one item that a
    worker warms the model up with. `cost` says how large an item is (tokens, pixels, bytes): items of like cost run together.
    """

    def mark(target: Callable[P, R]) -> ModelFunction[P, R]:
        attributes = ModelAttributes(name, version, max_batch_size, max_wait_s, accepts, _summary(target))
        return ModelFunction(target, attributes=attributes, batch=batch, sample=sample, cost=cost)

    return mark if function is None else mark(function)


def _summary(target: object) -> str:
    return (getattr(target, "__doc__", None) or "").strip()


def attributes_of(handler: type[Handler]) -> ModelAttributes:
    """The attributes of a Handler class. The description is the docstring of the class itself, never that of a base class."""
    return ModelAttributes(
        max_batch_size=handler.max_batch_size,
        max_wait_s=handler.max_wait_s,
        accepts=handler.accepts,
        description=(handler.__dict__.get("__doc__") or "").strip(),
    )
