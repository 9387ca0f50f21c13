"""The options of a model file without code of its own: a name that nobody reads is refused, and what was meant is said."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from penstock.errors import HandlerLoadError
from penstock.handlers.contract import Context
from penstock.handlers.runtimes.contract import chosen_runtime
from penstock.handlers.runtimes.torch.archive import FileKind, file_kind
from penstock.handlers.runtimes.torch.checks import OPTIONS
from penstock.handlers.tasks.options import TASKS, option_names


def check_option_names(path: Path, context: Context, *, task: str = "") -> None:
    """Raises `HandlerLoadError` for every option that neither the file's runtime nor the task reads: it would be ignored."""
    if not context.options:
        return
    of_file = OPTIONS[file_kind(path)] if chosen_runtime(path, context) == "torch" else ()
    known = sorted({*option_names(task), *of_file})
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
