"""Names of a model's classes, and Python's classes by name: what `ts.utils.util` and `ts.handler_utils.utils` look up."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """Class id -> name from a file such as index_to_name.json; None and a warning if there is no such file.

    A list as a name counts with its last entry, and `{"object_type_names": [...]}` is a list of names by id. Raises
    `ValueError` for anything else.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        log.warning("'%s' is missing. Inference output will not include class name.", mapping_file_path)
        return None
    mapping = json.loads(path.read_text("utf-8"))
    if isinstance(mapping, dict) and "object_type_names" in mapping:
        names = mapping["object_type_names"]
        return {str(index): str(name) for index, name in enumerate(names)}
    if not isinstance(mapping, dict):
        raise ValueError(f'index->name JSON mapping should be in "class": "label" format. {path.name} holds a {_kind(mapping)}')
    return {str(index): _label(index, name) for index, name in mapping.items()}


def map_class_to_label(
    probs: Sequence[Sequence[Any]], mapping: Mapping[str, str] | None = None, lbl_classes: Sequence[Sequence[Any]] | None = None
) -> list[dict[str, Any]]:
    """Per row of `probs` its values by name. `lbl_classes` are the ids of its columns (0, 1, ... if not given).

    A class without a name is named by its id.
    """
    if not isinstance(probs, list) or (lbl_classes is not None and not isinstance(lbl_classes, list)):
        raise TypeError("Convert classes to list before doing mapping")
    if mapping is not None and not isinstance(mapping, Mapping):
        raise TypeError("Mapping must be a dict")
    names = mapping or {}
    ids = lbl_classes if lbl_classes is not None else [range(len(row)) for row in probs]
    return [
        {names.get(str(index), str(index)): value for index, value in zip(own, row, strict=False)}
        for own, row in zip(ids, probs, strict=False)
    ]


def _label(index: str, name: Any) -> str:
    last = name[-1] if isinstance(name, list) and name else name
    if not isinstance(last, str):
        raise ValueError(f"labels in index->name mapping must be either str or List[str], and that of {index} is {name!r:.40}")
    return last


def _kind(value: Any) -> str:
    return type(value).__name__


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that the module itself defines, sorted by name; only `parent_class` and its subclasses if it is given."""
    home = module.__name__
    classes = [value for _, value in inspect.getmembers(module, inspect.isclass) if value.__module__ == home]
    return [one for one in classes if parent_class is None or issubclass(one, parent_class)]


def import_class(class_name: str, module_prefix: str | None = None) -> type:
    """The class named `module.Class`, with `module_prefix` before the module. Raises `ImportError` if it is not there."""
    module_name, _, name = class_name.rpartition(".")
    whole = ".".join(part for part in (module_prefix, module_name) if part)
    if not whole:
        raise ImportError(f"class:{name} names no module; write module.{name}")
    module = import_module(whole)
    value = getattr(module, name, None)
    if not isinstance(value, type):
        raise ImportError(f"class:{name} not found in module:{whole}.")
    return value
