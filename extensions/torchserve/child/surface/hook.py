"""Makes `import ts` find our names. For the processes of archives only: nothing else may ever install it."""

# D95: docs/design/runtimes.md
from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from penstock.extensions.torchserve.child.surface.names import (
    BUILTINS,
    MODULES,
    REPRODUCED,
    children,
    location_of,
    unknown_module,
    unknown_name,
)

_TOP = "ts"


def install() -> None:
    """Put the finder of `ts` first, for the rest of the process: handlers import inside their methods, too.

    Our `ts` wins over a TorchServe that is installed, so that a handler runs alike everywhere.
    """
    if any(isinstance(finder, TorchServeFinder) for finder in sys.meta_path):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == _TOP]:
        del sys.modules[name]
    sys.meta_path.insert(0, TorchServeFinder())


def builtin_class(name: str) -> type | None:
    """The class of a handler that needs no file, such as `image_classifier`; None if there is none of this name."""
    if name not in BUILTINS:
        return None
    kind: type = _lookup(f"{_TOP}.torch_handler.{name}", BUILTINS[name])
    return kind


class TorchServeFinder:
    """Finds and loads `ts` and what is below it. Raises `ImportError` for a module that is not there."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != _TOP:
            return None
        if name not in MODULES:
            # Not a ModuleNotFoundError, whose usual advice is to install a package.
            raise ImportError(unknown_module(name))
        return ModuleSpec(name, self, is_package=bool(children(name)))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's usual module."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__dict__.update(__getattr__=partial(_lookup, name), __all__=list(MODULES[name]), __version__=REPRODUCED)


def _lookup(module: str, name: str) -> Any:
    """A name that code asks of a module of `ts`. Raises `ImportError` for one that is not there."""
    location = location_of(module, name)
    if location is not None:
        return getattr(import_module(location[0]), location[1])
    if f"{module}.{name}" in MODULES:
        return import_module(f"{module}.{name}")
    if name.startswith("_"):
        # Python's own, which tools ask of every module.
        raise AttributeError(name)
    raise ImportError(unknown_name(module, name))
