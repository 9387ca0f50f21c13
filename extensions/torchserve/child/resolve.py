"""Resolves the `handler` of a manifest to what is called: a function or a class of the archive, or a built-in one (D96)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.archives.kinds import handler_module
from penstock.extensions.torchserve.archives.opening import OpenedArchive
from penstock.extensions.torchserve.child.errors import needs_gpu, no_gpu
from penstock.handlers.modules import import_file

Handle = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """What is called for a batch. `handle` takes rows and the context; `initialize` takes the context, and is called once.

    `file`: where the handler's own source lies; None for a built-in one.
    """

    label: str
    handle: Handle
    initialize: Callable[[Any], Any]
    file: Path | None = None


def entry_point(folder: Path, handler: str) -> EntryPoint:
    """Imports the handler; a class is made here, and not yet initialised. Raises `HandlerLoadError`.

    A file of the archive precedes a built-in handler of its name, and an error in that file is the one that is reported.
    """
    module_name, function = handler_module(handler)
    file = _file(folder, handler, module_name)
    if file is None:
        return _built_in(module_name, handler, folder)
    module = _imported(file, module_name)
    called = getattr(module, function, None)
    if callable(called) and not isinstance(called, type):
        return EntryPoint(f"{file.name}:{function}", called, lambda context: called(None, context), file)
    return _of_class(called if isinstance(called, type) else _own_class(module, file, function), file)


def _file(folder: Path, handler: str, module: str) -> Path | None:
    """The archive's own file: where the manifest says, or at the top, where the archiver puts it."""
    named = folder / handler.partition(":")[0]
    candidates = (named, folder / f"{module}.py", folder / module / "__init__.py")
    return next((path for path in candidates if path.suffix == ".py" and path.is_file()), None)


def _imported(file: Path, module: str) -> ModuleType:
    # Pickled models of the archive name its modules, so that they have their plain names.
    try:
        return import_file(file, module)
    except HandlerLoadError as error:
        cause = error.__cause__
        if cause is not None and needs_gpu(cause):
            raise no_gpu(str(file), cause) from cause
        raise


def _built_in(name: str, handler: str, folder: Path) -> EntryPoint:
    from penstock.extensions.torchserve.child.surface.hook import builtin_class
    from penstock.extensions.torchserve.child.surface.names import BUILTINS

    kind = builtin_class(name)
    if kind is None:
        raise HandlerLoadError(
            f"the archive's handler is {handler!r}, and {folder} has no {name}.py, nor is there a built-in handler of that "
            f"name; the built-in ones are {', '.join(BUILTINS)}"
        )
    return _of_class(kind, None)


def _own_class(module: ModuleType, file: Path, function: str) -> type:
    """The handler among the classes that the module itself defines: TorchServe knows it by being the only one."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    handling = [value for value in dict.fromkeys(own) if hasattr(value, "handle")]
    if len(handling) == 1:
        return handling[0]
    named = ", ".join(value.__name__ for value in handling) or "none"
    raise HandlerLoadError(
        f"{file} has no function {function}(data, context), so it must define exactly one class with a method "
        f"handle(self, data, context); it defines {named}"
    )


def _of_class(kind: type, file: Path | None) -> EntryPoint:
    try:
        instance = kind()
    except Exception as error:
        if needs_gpu(error):
            raise no_gpu(kind.__name__, error) from error
        how = f"{kind.__name__}() raised {type(error).__name__}: {error}"
        raise HandlerLoadError(f"{how}; a handler's class is made without arguments") from error
    handle = getattr(instance, "handle", None)
    if not callable(handle):
        raise HandlerLoadError(f"{kind.__name__} has no method handle(self, data, context)")
    initialize = getattr(instance, "initialize", None) or (lambda context: None)
    return EntryPoint(kind.__name__, handle, initialize, file)


def missing_here(archive: OpenedArchive) -> str:
    """The packages that the archive's requirements name and this process does not find, as the end of a load error; empty if
    there are none.
    """
    file = archive.manifest.requirements_file
    if not file:
        return ""
    # Read only where a load has failed.
    from penstock.handlers.requirements import in_words, install_line, missing_packages

    try:
        lacking = missing_packages([f"-r {archive.folder / file}"])
    except HandlerLoadError as unread:
        return f"; {unread.message}"
    how = f"run: {install_line(lacking)}, or set options.install_py_dep_per_model = true"
    return f"; missing of {file}: {in_words(lacking)}; {how}" if lacking else ""
