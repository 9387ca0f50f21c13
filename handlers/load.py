"""Turns the text that names a model (`file.py`, `package.module:Name`, `model.onnx`) into a handler that runs.

`import_model` imports the code and reads what it says of itself; `load` also creates the handler and calls `initialize`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from penstock.errors import HandlerLoadError, PenstockError
from penstock.extension import load_part
from penstock.handlers.contract import Context, CostStage, Handler
from penstock.handlers.decorator import FunctionHandler, ModelAttributes, ModelFunction, attributes_of, model, takes_context
from penstock.handlers.loaded import Loaded, Stage
from penstock.handlers.media import JSON, Codec, accepted, codec_for
from penstock.handlers.modules import (
    NONE_LENT,
    import_file,
    import_name,
    installed_release,
    missing_module,
    missing_variable,
    variable_line,
)
from penstock.handlers.runtimes.contract import is_model_file
from penstock.handlers.schema import ItemTypes, answer_types, handler_types, output_media, output_schema
from penstock.job import NPY_MEDIA
from penstock.model_spec import MAX_BATCH_SIZE, BatchPolicy, RuntimeOptions, bucket_fault, size_fault

# What TOML reads as a key without quotes.
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# The class method that a base class of an extension's has: it takes the folder of the source and returns an `ImportedModel`.
AS_MODEL = "__penstock_model__"
SOURCES = "path/to/file.py[:Name], package.module:Name or a model file such as model.onnx"


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """Model code that was imported and not yet initialised. `create` makes a handler; `folder` holds the source.

    `codec` reads the inputs; None: by their type.
    """

    label: str
    folder: Path
    attributes: ModelAttributes
    types: ItemTypes
    create: Callable[[], Handler]
    codec: Codec | None = None


def load(
    source: str,
    model: str,
    *,
    version: str = "1",
    device: str = "cpu",
    threads: int = 1,
    options: dict[str, Any] | None = None,
    task: str = "",
    runtime: RuntimeOptions | None = None,
    max_batch_size: int | None = None,
    requirements: Sequence[str] = (),
    loader: str = "",
    modules: Mapping[str, str] = NONE_LENT,
) -> Loaded:
    """The handler named by `source`, initialised; raises `HandlerLoadError` saying what, why and what to do next.

    `task` is a built-in task (docs/reference/tasks.md) to put around a model file. `max_batch_size` is that of the
    code unless given. `requirements` are checked before the code is imported. `loader` imports a source of an extension's kind,
    and `modules` are those that extensions lend to the code.
    """
    if requirements:
        # Imported here, because few models have requirements.
        from penstock.handlers.requirements import check_requirements

        check_requirements(requirements)
    with _naming_variables(model):
        imported = import_model(source, task=task, options=options, model=model, loader=loader, modules=modules)
        largest = max_batch_size or imported.attributes.max_batch_size or BatchPolicy().max_batch_size
        context = Context(
            model, version, device, threads, dict(options or {}), imported.folder, runtime or RuntimeOptions(), largest
        )
        # These checks take a millisecond, so they come before the weights are loaded.
        fault = size_fault(largest) or bucket_fault(context.runtime.batch_buckets, largest)
        if fault:
            raise HandlerLoadError(fault)
        if is_model_file(source):
            from penstock.handlers.tasks.file_handler import check_option_names

            check_option_names(Path(source), context, task=task)
        handler = _initialized(imported, context)
        return _assemble(imported, handler, context, codec=imported.codec or codec_for(imported.types.input))


@contextmanager
def _naming_variables(model: str) -> Iterator[None]:
    """Say which environment variable is missing where its name alone would be the error."""
    try:
        yield
    except HandlerLoadError as error:
        name = missing_variable(error.__cause__)
        if not name:
            raise
        raise HandlerLoadError(
            f"the model's code reads the environment variable {name}, which is not set; {variable_line(name, model)}"
        ) from error


def import_model(
    source: str,
    *,
    task: str = "",
    options: dict[str, Any] | None = None,
    model: str = "",
    loader: str = "",
    modules: Mapping[str, str] = NONE_LENT,
) -> ImportedModel:
    """The model named by `source`. Runs the top level of its module, never `initialize`. Raises `HandlerLoadError`.

    A `loader` gets the source, the `options` and the name of the `model`. `modules`: see `load`.
    """
    if is_model_file(source):
        # Code that is no model file does without the runtimes and tasks.
        from penstock.handlers.tasks.file_handler import handler_of_file

        return _imported(handler_of_file(Path(source), task), Path(source).resolve().parent)
    if task:
        raise HandlerLoadError(
            f"task {task!r} goes with a model file such as model.onnx, and {source} is code; "
            "leave task out and subclass the task's class there (docs/reference/tasks.md)"
        )
    if loader:
        imported: ImportedModel = load_part(loader)(Path(source), options or {}, model=model)
        return imported
    file, _, name = source.rpartition(":") if ".py:" in source else (source, "", "")
    if not file.endswith(".py"):
        return _from_module(source, modules)
    path = Path(file).resolve()
    return _imported(_pick(import_file(path, modules=modules), name, str(path)), path.parent)


def _from_module(source: str, modules: Mapping[str, str]) -> ImportedModel:
    module_name, _, name = source.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise HandlerLoadError(f"{source!r} does not name a model that can be loaded; write {SOURCES}")
    module = import_name(module_name, modules=modules)
    folder = Path(getattr(module, "__file__", None) or ".").resolve().parent
    return _imported(_pick(module, name, module_name), folder)


def _pick(module: object, name: str, where: str) -> object:
    """The model called `name`, or without a name the only one there is."""
    candidates = _candidates(module)
    if name:
        chosen = getattr(module, name, None)
        if inspect.isfunction(chosen):
            # A function that is named in the source counts, decorated or not.
            return model(chosen)
        if not _is_model(chosen):
            raise HandlerLoadError(
                f"{where} has no Handler class and no function called {name!r}; {_listed(candidates, module)}"
            )
        return chosen
    if len(candidates) != 1:
        said = _listed(candidates, module)
        raise HandlerLoadError(f"{where} must hold exactly one model, or the source must name one; {said}")
    return next(iter(candidates.values()))


def _candidates(module: object) -> dict[str, object]:
    """The models that the module itself defines. What it imports, such as base classes, is not meant to be served."""
    home = getattr(module, "__name__", "")
    return {
        name: value for name, value in vars(module).items() if _is_model(value) and getattr(value, "__module__", "") == home
    }


def _listed(candidates: dict[str, object], module: object) -> str:
    if candidates:
        return f"it holds {', '.join(candidates)}: append one, as in :{next(iter(candidates))}"
    home = getattr(module, "__name__", "")
    functions = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == home and name[0] != "_"
    ]
    if functions:
        return (
            f"it has the functions {', '.join(functions)}: append one, as in :{functions[0]}, or mark it with @penstock.model"
        )
    return "it holds none: subclass penstock.Handler or decorate a function with @penstock.model"


def _is_model(value: object) -> bool:
    if isinstance(value, ModelFunction) or _imports_itself(value):
        return True
    return isinstance(value, type) and issubclass(value, Handler) and value is not Handler


def _imports_itself(value: object) -> bool:
    """Whether it is a subclass of a base class that an extension lends to model code, which says how it is a model."""
    return isinstance(value, type) and any(AS_MODEL in vars(base) for base in value.__mro__[1:])


def _imported(declared: object, folder: Path) -> ImportedModel:
    if _imports_itself(declared):
        imported: ImportedModel = getattr(declared, AS_MODEL)(folder)
        return imported
    if isinstance(declared, ModelFunction):
        _check_function(declared)
        return ImportedModel(declared.function.__name__, folder, declared.attributes, declared.types(), declared.handler)
    assert isinstance(declared, type)
    assert issubclass(declared, Handler)
    _check_class(declared)
    return ImportedModel(declared.__name__, folder, attributes_of(declared), handler_types(declared), declared)


def _check_function(model: ModelFunction[Any, Any]) -> None:
    name = model.function.__name__
    if model.batch and inspect.iscoroutinefunction(model.function):
        raise HandlerLoadError(f"{name} is async, and an async function takes one item; leave out batch=True")
    if inspect.isasyncgenfunction(model.function):
        raise HandlerLoadError(f"{name} is async and yields; write a plain def that yields, or an async def that returns")
    try:
        inspect.signature(model.function).bind(None, **({"context": None} if takes_context(model.function) else {}))
    except TypeError as error:
        raise HandlerLoadError(
            f"{name} must take exactly one argument, the {'list of items' if model.batch else 'item'} "
            f"(and a context, if it names one so): {error}"
        ) from error


def _check_class(kind: type[Handler]) -> None:
    if kind.inference is Handler.inference:
        raise HandlerLoadError(f"{kind.__name__} has no inference method; add `def inference(self, batch: list) -> list`")
    if not callable(kind.cost):
        raise HandlerLoadError(
            f"{kind.__name__}.cost is no method; write `def cost(self, item) -> float`, or give it another name"
        )
    if kind.cost_stage not in get_args(CostStage):
        raise HandlerLoadError(f'{kind.__name__}.cost_stage is {kind.cost_stage!r}; it must be "item" or "input"')
    for stage in ("preprocess", "postprocess", "explain", "cost"):
        if inspect.iscoroutinefunction(getattr(kind, stage)):
            raise HandlerLoadError(
                f"{kind.__name__}.{stage} is async; only initialize and inference may be. Write a plain def, or await it there"
            )
    if inspect.isasyncgenfunction(kind.inference):
        raise HandlerLoadError(f"{kind.__name__}.inference is async and yields; write a plain def that yields")
    _check_concurrency(kind)


def _check_concurrency(kind: type[Handler]) -> None:
    most = kind.max_concurrency
    if most is not None and (not 1 <= most <= MAX_BATCH_SIZE or not inspect.iscoroutinefunction(kind.inference)):
        raise HandlerLoadError(
            f"{kind.__name__}.max_concurrency = {most!r}: it is for an `async def inference`, and says how many items run at "
            f"once, from 1 to {MAX_BATCH_SIZE}"
        )


def _initialized(imported: ImportedModel, context: Context) -> Handler:
    try:
        handler = imported.create()
        _initialize(handler, context)
    except PenstockError:
        raise
    except ModuleNotFoundError as error:
        raise missing_module(error, f"{imported.label}.initialize") from error
    except SystemExit as error:
        # Without this the child would end without a message, and its worker would report a crash.
        raise HandlerLoadError(
            f"{imported.label}.initialize ended the process with sys.exit({error.code!r}); "
            "raise an error there that says what is missing"
        ) from error
    except Exception as error:
        raise HandlerLoadError(
            f"{imported.label} could not be loaded on {context.device}: {type(error).__name__}: {error}"
            f"{installed_release(error)}. Its initialize method raised this; run the file by itself to see where"
        ) from error
    return handler


def _initialize(handler: Handler, context: Context) -> None:
    begun: Any = handler.initialize(context)  # type: ignore[func-returns-value]
    if inspect.isawaitable(begun):
        # Imported here, because only async models need it.
        from penstock.handlers.running.coroutines import run_to_end

        run_to_end(begun)


def _assemble(imported: ImportedModel, handler: Handler, context: Context, *, codec: Codec) -> Loaded:
    kind, types = type(handler), imported.types
    streams = inspect.isgeneratorfunction(handler.inference)
    is_async = inspect.iscoroutinefunction(handler.inference)
    at_once = (handler.max_concurrency or context.max_batch_size) if is_async else 0
    accepts = imported.attributes.accepts or accepted(types.input)
    return Loaded(
        context=context,
        handler=handler,
        attributes=imported.attributes,
        # A model that lists files of numpy's takes arrays.
        codec=replace(codec, form_schema=handler.input_schema, arrays=NPY_MEDIA in accepts),
        accepts=accepts,
        inference=_inference(handler, context, streams=streams, at_once=at_once, label=imported.label),
        preprocess=None if kind.preprocess is Handler.preprocess else handler.preprocess,
        postprocess=None if kind.postprocess is Handler.postprocess else handler.postprocess,
        explain=None if kind.explain is Handler.explain else handler.explain,
        input_schema=handler.input_schema or codec.schema(),
        output_schema=handler.output_schema or output_schema(types.output),
        output_media=output_media(types.output),
        answers=(JSON,) if handler.output_schema else answer_types(types.output),
        provider=handler.provider,
        cost=None if kind.cost is Handler.cost else handler.cost,
        inference_calls=getattr(handler, "inference_calls", None),
        asks=types.asks,
        may_look=_may_look(handler),
        streams=streams or handler.sends_chunks,
        at_once=at_once,
        warnings=handler.warnings,
    )


def _may_look(handler: Handler) -> bool:
    """Whether the model's own code has the context, and so `context.requests`. Our handlers of model files never look."""
    if isinstance(handler, FunctionHandler):
        return handler.has_context
    return not type(handler).__module__.startswith("penstock.")


def _inference(handler: Handler, context: Context, *, streams: bool, at_once: int, label: str) -> Stage:
    """The stage as a plain function. Only models that stream, or are async, load what that needs."""
    inference: Any = handler.inference
    if streams:
        from penstock.handlers.running.streaming import streaming_stage

        return streaming_stage(inference, context)
    if at_once:
        from penstock.handlers.running.coroutines import CoroutineStage

        return CoroutineStage(inference, context, name=label, at_once=at_once)
    return handler.inference
