"""The tasks by the names that penstock.toml gives them. A task's module is imported when it is chosen."""

from __future__ import annotations

from importlib import import_module

import msgspec

from penstock.errors import HandlerLoadError
from penstock.handlers.array_handler import ArrayHandler

TASKS = {
    "image-classification": "ImageClassification",
    "segmentation": "Segmentation",
    "object-detection": "ObjectDetection",
    "text-classification": "TextClassification",
    "text-embedding": "TextEmbedding",
}


def task_class(task: str) -> type[ArrayHandler]:
    """The handler class of a task; raises `HandlerLoadError` for a name that is none."""
    if task not in TASKS:
        raise HandlerLoadError(f"there is no task {task!r}; the tasks are {', '.join(TASKS)}")
    found: type[ArrayHandler] = getattr(import_module(f"penstock.handlers.tasks.{task.replace('-', '_')}"), TASKS[task])
    return found


def option_names(task: str) -> tuple[str, ...]:
    """Those of the task alone; none where there is no task."""
    defaults = getattr(task_class(task), "defaults", None) if task else None
    return tuple(field.name for field in msgspec.structs.fields(defaults)) if defaults else ()
