"""Classes of a module, and a class by its dotted name: `ts.utils.util` and `ts.handler_utils.utils`."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that the module itself defines, sorted by name; only `parent_class` and its subclasses if it is given."""
    home = module.__name__
    found = [value for _, value in inspect.getmembers(module, inspect.isclass) if value.__module__ == home]
    return [one for one in found if parent_class is None or issubclass(one, parent_class)]


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """The class named `module.Class`, with `module_prefix` before the module. Raises `ImportError` if it is not there."""
    module_name, _, name = class_name.rpartition(".")
    whole = ".".join(part for part in (module_prefix, module_name) if part)
    if not whole:
        raise ImportError(f"class:{name} names no module; write module.{name}")
    module = import_module(whole)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise ImportError(f"class:{name} not found in module:{whole}.")
    return found
