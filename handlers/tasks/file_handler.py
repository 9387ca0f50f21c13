"""The handler of a model file, which has no code of its own: its class, and which options its runtime and its task read.

An option that nothing reads is refused, with the option that was probably meant.
"""

# D32: nothing about a model file is guessed, and D46: what would be ignored is refused.

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from penstock.errors import HandlerLoadError
from penstock.handlers.array_handler import ArrayHandler
from penstock.handlers.contract import Context
from penstock.handlers.media import JSON
from penstock.handlers.runtimes.contract import chosen_runtime
from penstock.handlers.runtimes.torch.archive import FileKind, file_kind
from penstock.handlers.runtimes.torch.checks import OPTIONS
from penstock.handlers.tasks.options import TASKS, option_names, task_class
from penstock.job import NPY_MEDIA


def handler_of_file(path: Path, task: str) -> type[ArrayHandler]:
    """Raises `HandlerLoadError` if there is no such file or task."""
    if not path.exists():
        raise HandlerLoadError(f"there is no file {path}; check the path (it is relative to the current folder)")
    base = task_class(task) if task else ArrayHandler
    description = f"The model file {path.name}." if not task else base.__doc__
    # Without this line the gateway would let other media types through.
    accepts = base.accepts if task else (JSON, NPY_MEDIA)
    return type("ModelFile", (base,), {"model_file": path.name, "accepts": accepts, "__doc__": description})


def check_option_names(path: Path, context: Context, *, task: str = "") -> None:
    """Raises `HandlerLoadError` if neither the file's runtime nor the task reads an option, which would then be ignored."""
    if not context.options:
        return
    file_options = OPTIONS[file_kind(path)] if chosen_runtime(path, context) == "torch" else ()
    known = sorted({*option_names(task), *file_options})
    unknown = [f"{name!r}{_meant(name, known)}" for name in context.options if name not in known]
    if unknown:
        owner = f"{path.name} as {task}" if task else path.name
        there_are = f"its options are {', '.join(known)}" if known else "it takes none"
        raise HandlerLoadError(f"{owner} has no option {', nor '.join(unknown)}; {there_are}")


def _meant(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    if near:
        return f" (did you mean {near[0]}?)"
    tasks = [f'"{task}"' for task in TASKS if name in option_names(task)]
    if tasks:
        return f" (it belongs to a task: set task = {' or '.join(tasks)})"
    elsewhere = get_close_matches(name, OPTIONS[FileKind.WEIGHTS], n=1)
    if elsewhere:
        owners = [kind for kind, names in OPTIONS.items() if elsewhere[0] in names]
        return f" ({elsewhere[0]} is an option of {', '.join(owners)})"
    return ""
