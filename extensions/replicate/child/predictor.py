"""A `cog.BasePredictor` class as a handler: `setup` is `initialize`, and each item is a call of `predict` (D84)."""

from __future__ import annotations

import inspect
import typing
from collections import abc
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.extensions.replicate.child.inputs import PredictorInput, input_of
from penstock.extensions.replicate.child.outputs import has_files, output_of
from penstock.extensions.replicate.child.surface import BasePredictor, ConcatenateIterator
from penstock.handlers.contract import Context, Handler
from penstock.handlers.decorator import CoroutineItems, FunctionHandler, ItemFunction, ModelAttributes, StreamingItems
from penstock.handlers.load import ImportedModel
from penstock.handlers.schema import ItemTypes, output_schema

# D84: docs/design/runtimes.md
_ITERATORS = (abc.Iterator, abc.Iterable, abc.Generator, ConcatenateIterator)
_ASYNC_ITERATORS = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
_ITERATOR = {"x-cog-array-type": "iterator"}


class PredictorModel:
    """The user's class as a model, not yet set up. Raises `HandlerLoadError` for a class that cannot be served."""

    def __init__(self, kind: type[BasePredictor]) -> None:
        _check(kind)
        said = (kind.__dict__.get("__doc__") or kind.predict.__doc__ or "").strip()
        self._kind = kind
        self._taken = input_of(kind.predict, f"{kind.__name__}.predict")
        self.label = kind.__name__
        # One item at a time, so that each is answered as soon as it is done.
        self.attributes = ModelAttributes(max_batch_size=1, description=said)
        self.types = ItemTypes(self._taken.kind)

    def handler(self) -> Handler:
        """A new handler that makes the user's object in `initialize`."""
        predictor = Predictor(self._kind, self._taken)
        handler: FunctionHandler
        if inspect.iscoroutinefunction(self._kind.predict):
            handler = PredictorCoroutines(predictor.awaited)
        else:
            handler = PredictorStreams(predictor.steps) if predictor.is_iterator else PredictorItems(predictor.answer)
        handler.predictor = predictor
        handler.output_schema = predictor.output_schema()
        return handler


def imported_predictor(kind: type[BasePredictor], folder: Path) -> ImportedModel:
    model = PredictorModel(kind)
    return ImportedModel(model.label, folder, model.attributes, model.types, model.handler)


class Predictor:
    """One instance of the user's class, and the calls of its `predict`."""

    def __init__(self, kind: type[BasePredictor], taken: PredictorInput) -> None:
        self._kind = kind
        self._taken = taken
        self._returns = typing.get_type_hints(kind.predict).get("return", Any)
        self._instance: BasePredictor | None = None
        self.is_iterator = inspect.isgeneratorfunction(kind.predict) or _origin(self._returns) in _ITERATORS

    def set_up(self) -> Any:
        """Run `setup`. What it returns may have to be awaited."""
        self._instance = self._kind()
        # Weights that are given at the start are a feature of Cog's own platform.
        takes_weights = "weights" in inspect.signature(self._instance.setup).parameters
        return self._instance.setup(weights=None) if takes_weights else self._instance.setup()

    def answer(self, given: Any) -> Any:
        with ExitStack() as files:
            return output_of(self._call(given, files))

    async def awaited(self, given: Any) -> Any:
        with ExitStack() as files:
            return output_of(await self._call(given, files))

    def steps(self, given: Any) -> Generator[Any, None, list[Any]]:
        """What `predict` yields, and the list of it as the output. A chunk is JSON, so a file comes with the output alone."""
        made = []
        with ExitStack() as files:
            for chunk in self._call(given, files):
                made.append(output_of(chunk))
                yield None if has_files(made[-1]) else made[-1]
        return made

    def output_schema(self) -> dict[str, Any] | None:
        """The schema of the return annotation. An iterator is a list, marked as Cog marks it."""
        if not self.is_iterator:
            return output_schema(self._returns)
        inner = next(iter(typing.get_args(self._returns)), Any)
        shown = {"x-cog-array-display": "concatenate"} if _origin(self._returns) is ConcatenateIterator else {}
        return {"type": "array", "items": output_schema(inner) or {}, **_ITERATOR, **shown}

    def _call(self, given: Any, files: ExitStack) -> Any:
        assert self._instance is not None
        return self._instance.predict(**self._taken.arguments(given, files))


class _SetUp(FunctionHandler):
    predictor: Predictor

    def initialize(self, context: Context, /) -> Any:  # a coroutine where `setup` is one
        return self.predictor.set_up()


class PredictorItems(_SetUp, ItemFunction):
    """The handler of a predictor that returns its output."""


class PredictorStreams(_SetUp, StreamingItems):
    """The handler of a predictor that yields."""


class PredictorCoroutines(_SetUp, CoroutineItems):
    """The handler of a predictor whose `predict` is a coroutine."""


def _origin(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def _check(kind: type[BasePredictor]) -> None:
    if kind.predict is BasePredictor.predict:
        raise HandlerLoadError(f"{kind.__name__} has no predict method; add `def predict(self, ...)`")
    if (
        inspect.isasyncgenfunction(kind.predict)
        or _origin(typing.get_type_hints(kind.predict).get("return")) in _ASYNC_ITERATORS
    ):
        raise HandlerLoadError(
            f"{kind.__name__}.predict is async and yields; write a plain def that yields, or an async def that returns"
        )
