"""The tasks, and their options: one Struct per task, whose fields are all its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from penstock.errors import HandlerContractError, HandlerLoadError
from penstock.handlers.array_handler import ArrayHandler
from penstock.handlers.runtimes.torch.checks import OPTIONS
from penstock.handlers.schema import pointer_of

# The tasks by the names that penstock.toml gives them. A task's module is imported when the task is chosen.
TASKS = {
    "image-classification": "ImageClassification",
    "segmentation": "Segmentation",
    "object-detection": "ObjectDetection",
    "text-classification": "TextClassification",
    "text-embedding": "TextEmbedding",
}
# Options in the same table that a runtime reads, for files that do not contain these facts (docs/reference/runtimes.md).
FILE_OPTIONS = frozenset(name for names in OPTIONS.values() for name in names)


class TaskOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`input` and `output` choose one of several of the model. Empty: the only one, or the usual one."""

    input: str = ""
    output: str = ""


T = TypeVar("T")
Options = TypeVar("Options", bound=TaskOptions)


def task_class(task: str) -> type[ArrayHandler]:
    """The handler class of a task. Raises `HandlerLoadError` for an unknown name."""
    if task not in TASKS:
        raise HandlerLoadError(f"there is no task {task!r}; the tasks are {', '.join(TASKS)}")
    chosen: type[ArrayHandler] = getattr(import_module(f"penstock.handlers.tasks.{task.replace('-', '_')}"), TASKS[task])
    return chosen


def option_names(task: str) -> tuple[str, ...]:
    """The options of the task, without those of the model file; none without a task."""
    defaults = getattr(task_class(task), "defaults", None) if task else None
    return tuple(field.name for field in msgspec.structs.fields(defaults)) if defaults else ()


def read_options(defaults: Options, given: Mapping[str, Any], *, task: str) -> Options:
    """`defaults` with the values of `given`. Raises a `HandlerLoadError` that lists the valid options."""
    known = [field.name for field in msgspec.structs.fields(defaults)]
    own = {name: value for name, value in given.items() if name not in FILE_OPTIONS}
    unknown = [name for name in own if name not in known]
    if unknown:
        raise HandlerLoadError(f"{task} has no option {unknown[0]!r}; its options are {', '.join(sorted(known))}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(defaults), **own}, type(defaults))
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        name = pointer_of(path.rstrip("`")).strip("/").replace("/", ".")
        # Faults from a Struct's own check have no path; their text names the option.
        where = f"option {name} of {task}" if name else task
        choices = _choices(get_type_hints(type(defaults))[name.partition(".")[0]]) if "enum value" in what else []
        raise HandlerLoadError(f"{where}: {what}" + (f"; it takes {', '.join(choices)}" if choices else "")) from error


def _choices(hint: Any) -> list[str]:
    """The values that an option of this type takes, as written in TOML."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    if hint is bool:
        return ["true", "false"]
    return [choice for part in get_args(hint) for choice in _choices(part)]


def check_output(names: Sequence[str], wanted: str) -> None:
    """Raises `HandlerLoadError` for an unknown output. Without `names` the runtime learns them from the first call."""
    if wanted and names and wanted not in names:
        raise HandlerLoadError(f"the model has no output {wanted!r}; it has {', '.join(names)}")


def output_of(outputs: Mapping[str, T], wanted: str, usual: str = "") -> T:
    """The wanted output, else the one with the usual name, else the first. Raises `HandlerContractError` for an unknown one."""
    if not wanted:
        return outputs[usual] if usual in outputs else next(iter(outputs.values()))
    if wanted not in outputs:
        raise HandlerContractError(f"the model has no output {wanted!r}; it has {', '.join(outputs)}")
    return outputs[wanted]
